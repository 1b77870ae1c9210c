# shellcheck shell=bash
# Runs nanobatch as a step of a Slurm job, and requeues the job when the run was stopped.
# requeue.sbatch and array.sbatch source it.
#
# Who gets which signal:
#   USR1  (--signal=B:USR1@180) goes to the batch shell alone, which hands it to srun; srun hands
#         it to nanobatch, which ends with 75 within 10 s.
#   TERM  (time limit, preemption) goes to nanobatch from Slurm itself. The shell must only outlive
#         it: handed on, it would be nanobatch's second signal, which ends it at once, and srun
#         makes a KILL of it.

EXIT_STOPPED=75
MAX_IDLE_REQUEUES=${MAX_IDLE_REQUEUES:-3}

# Since Slurm 22.05 a step does not take the job's CPUs unless told to.
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}

# run_step COMMAND...: runs it with srun and returns its exit code.
run_step() {
    local step='' code interrupted
    trap 'interrupted=1; [[ -z $step ]] || kill -USR1 "$step" || true' USR1
    trap 'interrupted=1' TERM
    srun "$@" &
    step=$!
    while :; do
        interrupted=''
        code=0
        wait "$step" || code=$?
        # A trapped signal ends wait, with a code above 128, before the step has ended.
        if [[ -z $interrupted || $code -le 128 ]]; then
            break
        fi
    done
    trap : USR1 TERM # there is nothing left to stop
    return "$code"
}

# rows_done OUTPUT: prints how many rows have a result, 0 if nobody knows.
rows_done() {
    local json
    json=$(nanobatch status "$1" --json 2>/dev/null) ||
        json=$(cat "${1%/}.nanobatch/status.json" 2>/dev/null) || json=''
    if [[ $json =~ \"rows_done\":\ *([0-9]+) ]]; then
        echo "${BASH_REMATCH[1]}"
    else
        echo 0
    fi
}

# finish CODE OUTPUT: requeues the job if the run was stopped, and ends this script with the code.
# OUTPUT.requeues remembers the rows that were done and how often the job was requeued since.
finish() {
    local code=$1 record="${2%/}.requeues" rows last_rows=0 idle=0
    if [[ $code -ne $EXIT_STOPPED ]]; then
        rm -f "$record"
        exit "$code"
    fi
    rows=$(rows_done "$2")
    if [[ -f $record ]]; then
        read -r last_rows idle <"$record"
    fi
    if [[ $rows -gt $last_rows ]]; then
        idle=0
    fi
    if [[ $idle -ge $MAX_IDLE_REQUEUES ]]; then
        echo "not requeued: no new row in $idle requeues ($rows rows done)" >&2
        rm -f "$record" # whoever submits it again has found out why
        exit "$code"
    fi
    echo "$rows $((idle + 1))" >"$record"
    echo "requeueing job $SLURM_JOB_ID: $rows rows done" >&2
    scontrol requeue "$SLURM_JOB_ID"
    exit "$code"
}
