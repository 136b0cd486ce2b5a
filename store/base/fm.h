/* fm.h - attributes and small helpers that every file may use. Includes no header of fmstore. */
#ifndef FM_BASE_FM_H
#define FM_BASE_FM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define FM_BEGIN_DECLS extern "C" {
#define FM_END_DECLS }
#else
#define FM_BEGIN_DECLS
#define FM_END_DECLS
#endif

/* The result must be used. Where it does not matter, say why: fm_ignore(f(), "reason"). */
#define FM_CHECKED __attribute__((warn_unused_result))
#define FM_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define FM_NORETURN __attribute__((noreturn))

#define FM_ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
#define FM_MIN(a, b) ((a) < (b) ? (a) : (b))
#define FM_MAX(a, b) ((a) > (b) ? (a) : (b))

/* For mistakes of this program, always on; wrong input is reported by a status. */
#define fm_assert(cond) ((cond) ? (void)0 : fm_assert_failed(#cond, __FILE__, __LINE__))

FM_BEGIN_DECLS
FM_NORETURN void fm_assert_failed(const char *cond, const char *file, int line);
static inline void fm_ignore(int value, const char *reason)
{
    (void)value;
    (void)reason;
}
FM_END_DECLS

#endif
