#!/bin/bash
# Answers every file that lies in a folder, night after night, within the hours of the night.
# Prints only what somebody must look at: cron mails what is printed.
#
# A file whose output exists is done. One that the morning interrupts is continued next night.
# No flock: nanobatch refuses a second run on one output by itself.
set -euo pipefail

INBOX=${INBOX:-$HOME/nanobatch/inbox}
OUTBOX=${OUTBOX:-$HOME/nanobatch/outbox}
CONFIG=${CONFIG:-$HOME/nanobatch/job.toml}
HOURS=${HOURS:-7}
LOG=${LOG:-$OUTBOX/nightly-$(date +%F).log}

mkdir -p "$OUTBOX"
worst=0
for input in "$INBOX"/*.jsonl; do
    [[ -e $input ]] || continue # the folder is empty
    output=$OUTBOX/$(basename "$input" .jsonl).parquet
    [[ ! -e $output ]] || continue
    seconds_left=$((HOURS * 3600 - SECONDS))
    [[ $seconds_left -gt 0 ]] || break

    code=0
    nanobatch run "$input" -o "$output" --config "$CONFIG" --stop-after "${seconds_left}s" \
        >>"$LOG" 2>&1 || code=$?
    case $code in
        0) ;;        # every row ok
        75) break ;; # the night is over, the next one goes on
        3) echo "$output: finished, with error rows" ;;
        *) echo "$input: nanobatch ended with $code, finished rows are kept" ;;
    esac
    if [[ $code -ne 0 ]]; then
        tail -n 3 "$LOG"
        worst=$code
    fi
done
exit "$worst"
