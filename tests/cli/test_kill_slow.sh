#!/bin/bash
# test_kill.sh with 60 kills at random times; fault_crash tries 400 points, also of calls that are not ours.
FM_KILLS=60 FM_KILL_SEED=200 exec bash "$(dirname "$0")/test_kill.sh"
