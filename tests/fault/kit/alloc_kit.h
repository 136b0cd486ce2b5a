/* alloc_kit.h - each allocation of a scenario fails in turn. */
#ifndef FM_TESTS_FAULT_ALLOC_KIT_H
#define FM_TESTS_FAULT_ALLOC_KIT_H

#include "tests/testkit.h"

/* Runs the scenario with the 1st, 2nd, ... allocation failing, once and for ever after, until it
 * gets through; at_least: so many there must be. */
static inline void ak_fail_each(fm_status (*scenario)(void), uint64_t at_least)
{
    for (int forever = 0; forever < 2; forever++) {
        uint64_t nth = 1;
        for (;; nth++) {
            assert_true(nth < 100000);
            uint64_t before = fm_mem_alloc_count();
            fm_error_clear();
            fm_mem_fail_at(nth, forever);
            fm_status rc = scenario();
            fm_mem_fail_at(0, false);
            if (rc == FM_OK && fm_mem_alloc_count() - before < nth)
                break; /* the scenario never got as far as the nth */
            if (rc == FM_OK)
                continue; /* survived by design, and the scenario checked its answer */
            tk_fails(rc, FM_ENOMEM, "out of memory");
        }
        assert_true(nth > at_least);
    }
}

#endif
