"""Commands of other schedulers and tools, and Kant's equivalents."""

from __future__ import annotations

SENTENCES = {
    "sbatch": "`kant submit SCRIPT` queues a script and reads its #SBATCH lines",
    "srun": "`kant run -- COMMAND` queues a command and stays with it",
    "salloc": "`kant alloc` waits for GPUs and opens a shell on them",
    "squeue qstat bjobs ls ps list": "`kant jobs` lists waiting and running jobs",
    "scancel qdel bkill rm delete": "`kant cancel JOB` ends a job",
    "sinfo nodes": "`kant top` lists the nodes, and `kant status` says what is free",
    "sacct": "`kant jobs --all` lists ended jobs too, and `kant history` adds up what they used",
    "sreport": "`kant history` adds up what ended jobs used",
    "sstat": "`kant show JOB` says what a job uses",
    "sprio": "`kant why JOB` says what is ahead of a job, and `kant queue` what each queue holds",
    "sshare quota queues": "`kant queue` prints the queues with their quotas",
    "sacctmgr": "queues and quotas are in a file: `kant up --queues FILE`",
    "sattach": "`kant attach JOB` opens a job's terminal",
    "scontrol": "`kant show`, `kant hold`, `kant release`, `kant requeue` and `kant update` take the job's number",
    "qsub bsub add": "`kant submit -- COMMAND` queues a command",
    "start": "`kant up` starts Kant, and `kant release JOB` releases a held job",
    "drain": "`kant leave NAME` drains a machine that has joined, and lets it go; on Kubernetes `kubectl drain`",
    "stop": "`kant cancel JOB` ends a job, and `kant down` stops Kant while jobs continue",
    "pause": "`kant queue pause NAME` (or --all) stops starts; `kant hold JOB` keeps one job from starting",
    "resume": "`kant queue resume NAME` (or --all), or `kant release JOB` of a held job",
    "restart": "`kant requeue JOB` stops a running job and puts it back in the queue",
    "kill": "`kant cancel JOB` ends a job, and `kant signal JOB NAME` sends it a signal",
    "get": "`kant jobs` lists waiting and running jobs, and `kant show JOB` shows all about one",
    "describe": "`kant show JOB` shows all about a job",
    "info": "`kant show JOB` shows all about a job, and `kant status` what is free",
    "follow tail": "`kant logs --follow JOB` prints what a job writes as it writes it",
    "watch": "`kant jobs --watch` repeats the list, and `kant logs --follow JOB` prints what a job writes",
    "edit": "`kant update JOB` changes a waiting job",
    "exec ssh": "`kant shell JOB` opens a shell on the GPUs of a running job",
    "server": "`kant up` starts Kant on this machine",
    "web ui": "`kant page` prints the address of the page",
    "validate": "`kant check PATH` checks a file",
    "version": "`kant --version` prints it",
}
"""Commands of other tools, Slurm's first: each key lists words, and its value is the sentence to print for them."""
INSTEAD = {word: sentence for words, sentence in SENTENCES.items() for word in words.split()}


def answer(word: str) -> str | None:
    """Return the sentence for a command of another tool, or None."""
    said = INSTEAD.get(word)
    return f"{word} is not a command of Kant: {said}." if said is not None else None
