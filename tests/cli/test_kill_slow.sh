#!/bin/bash
# ctest: long
# test_kill.sh at every call and with 60 kills at random times; fault_crash kills at calls that are not ours, too.
FM_KILLS=60 FM_KILL_SEED=200 FM_KILL_EACH=1 exec bash "$(dirname "$0")/test_kill.sh"
