#!/bin/bash
# test_kill.sh with 200 kills at random times.
FM_KILLS=200 FM_KILL_SEED=200 exec bash "$(dirname "$0")/test_kill.sh"
