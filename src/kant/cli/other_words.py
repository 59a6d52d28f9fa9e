"""Commands of other schedulers and tools, and Kant's equivalents."""

from __future__ import annotations

NODES = "`kant top` lists the nodes, and `kant status` says what is free"
INSTEAD = {
    # Slurm
    "sbatch": "`kant submit SCRIPT` queues a script and reads its #SBATCH lines",
    "srun": "`kant run -- COMMAND` queues a command and stays with it",
    "salloc": "`kant alloc` waits for GPUs and opens a shell on them",
    "squeue": "`kant jobs` lists waiting and running jobs",
    "scancel": "`kant cancel JOB` ends a job",
    "sinfo": NODES,
    "sacct": "`kant jobs --all` lists ended jobs too, and `kant history` adds up what they used",
    "sreport": "`kant history` adds up what ended jobs used",
    "sstat": "`kant show JOB` says what a job uses",
    "sprio": "`kant why JOB` says what is ahead of a job, and `kant queue` what each queue holds",
    "sshare": "`kant queue` prints the queues with their quotas",
    "sacctmgr": "queues and quotas are in a file: `kant up --queues FILE`",
    "sattach": "`kant attach JOB` opens a job's terminal",
    "scontrol": "`kant show`, `kant hold`, `kant release`, `kant requeue` and `kant update` take the job's number",
    # PBS and LSF
    "qsub": "`kant submit -- COMMAND` queues a command",
    "bsub": "`kant submit -- COMMAND` queues a command",
    "qstat": "`kant jobs` lists waiting and running jobs",
    "bjobs": "`kant jobs` lists waiting and running jobs",
    "qdel": "`kant cancel JOB` ends a job",
    "bkill": "`kant cancel JOB` ends a job",
    # words of shells and of other tools
    "add": "`kant submit -- COMMAND` queues a command",
    "start": "`kant up` starts Kant, and `kant release JOB` releases a held job",
    "drain": "`kant leave NAME` drains a machine that has joined, and lets it go; on Kubernetes `kubectl drain`",
    "stop": "`kant cancel JOB` ends a job, and `kant down` stops Kant while jobs continue",
    "pause": "`kant queue pause NAME` (or --all) stops starts; `kant hold JOB` keeps one job from starting",
    "resume": "`kant queue resume NAME` (or --all), or `kant release JOB` of a job that is held",
    "restart": "`kant requeue JOB` stops a running job and puts it back in the queue",
    "kill": "`kant cancel JOB` ends a job, and `kant signal JOB NAME` sends it a signal",
    "rm": "`kant cancel JOB` ends a job",
    "delete": "`kant cancel JOB` ends a job",
    "ls": "`kant jobs` lists waiting and running jobs",
    "ps": "`kant jobs` lists waiting and running jobs",
    "list": "`kant jobs` lists waiting and running jobs",
    "get": "`kant jobs` lists waiting and running jobs, and `kant show JOB` shows all about one",
    "describe": "`kant show JOB` shows all about a job",
    "info": "`kant show JOB` shows all about a job, and `kant status` what is free",
    "nodes": NODES,
    "follow": "`kant logs --follow JOB` prints what a job writes as it writes it",
    "tail": "`kant logs --follow JOB` prints what a job writes as it writes it",
    "watch": "`kant page` has a live page, and `kant logs --follow JOB` prints what a job writes as it writes it",
    "edit": "`kant update JOB` changes a waiting job",
    "exec": "`kant shell JOB` opens a shell on the GPUs of a running job",
    "ssh": "`kant shell JOB` opens a shell on the GPUs of a running job",
    "quota": "`kant queue` prints the queues with their quotas",
    "queues": "`kant queue` prints the queues with their quotas",
    "server": "`kant up` starts Kant on this machine",
    "web": "`kant page` prints the address of the page",
    "ui": "`kant page` prints the address of the page",
    "validate": "`kant check PATH` checks a file",
    "version": "`kant --version` prints it",
}
"""Words that are not commands of Kant, each with the sentence to print."""


def answer(word: str) -> str | None:
    """Return the sentence for a command of another tool, or None."""
    said = INSTEAD.get(word)
    return f"{word} is not a command of Kant: {said}." if said is not None else None
