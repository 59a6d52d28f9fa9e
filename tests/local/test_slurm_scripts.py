"""Scripts in the style of clusters' public documentation run as they are: with Slurm's commands, as Kant has them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.command import kant as verb
from tests.local.up import Up, eventually

TORCHRUN = f"""#!{sys.executable}
# Stands for torchrun: agents of all nodes meet at the endpoint, and each starts its processes.
import os, re, socket, subprocess, sys
said = dict(re.findall(r"--([a-z_]+)=(\\S+)", " ".join(sys.argv[1:]).replace("-per-", "_per_")))
program = [word for word in sys.argv[1:] if not word.startswith("--")]
nodes, each = int(said.get("nnodes", 1)), int(said["nproc_per_node"])
node = 0
if nodes > 1:
    host, _, port = said["rdzv_endpoint"].rpartition(":")
    where = (socket.gethostbyname(host), int(port))
    meeting = socket.socket()
    meeting.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        meeting.bind(where)
        meeting.listen()
        others = [meeting.accept()[0] for _ in range(nodes - 1)]
        for n, other in enumerate(others, start=1):
            other.sendall(b"%d" % n)
    except OSError:
        import time
        for _ in range(300):
            try:
                with socket.create_connection(where, 60) as one:
                    node = int(one.recv(9))
                break
            except OSError:
                time.sleep(0.1)
codes = []
children = [subprocess.Popen([sys.executable, *program], env=os.environ | {{
    "LOCAL_RANK": str(n), "RANK": str(node * each + n), "WORLD_SIZE": str(nodes * each)}}) for n in range(each)]
sys.exit(max(child.wait() for child in children))
"""
TRAIN = """import json, os, sys
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES", "SLURM_PROCID",
         "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK",
         "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_JOB_ACCOUNT", "OMP_NUM_THREADS")
line = json.dumps({name: os.environ[name] for name in names if name in os.environ} | {"args": sys.argv[1:]})
os.write(1, line.encode() + b"\\n")
"""


@pytest.fixture(scope="module")
def kant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with Up(tmp_path_factory.mktemp("slurm") / "home", "1x8") as found:
        yield found


@pytest.fixture
def bin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kant: Up) -> Path:
    """A folder of the PATH with Slurm's commands, torchrun, `kant` and `python`, in a folder with train.py."""
    folder = tmp_path / "bin"
    assert verb("slurm-shims", folder).code == 0
    python = f'#!/bin/sh\nexec {sys.executable} "$@"\n'
    kants = python.replace('"$@"', '-m kant "$@"')
    for name, text in (("torchrun", TORCHRUN), ("python", python), ("kant", kants)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (tmp_path / "train.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("KANT_HOME", str(kant.home))
    for name in list(os.environ):
        if name.startswith(("SLURM", "KANT_JOB")):
            monkeypatch.delenv(name)
    return folder


def command(*words: object, code: int = 0) -> str:
    """What one of Slurm's commands prints."""
    import subprocess

    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    assert done.returncode == code, (words, done.stdout, done.stderr)
    return done.stdout + done.stderr if code else done.stdout


def batch(text: str, *words: str) -> str:
    """The id of a script that is queued by sbatch."""
    Path("job.sh").write_text(text)
    said = command("sbatch", *words, "job.sh")
    assert said.startswith("Submitted batch job ")
    return said.split()[-1]


def ranks(log: str) -> list[dict[str, str]]:
    """What the processes of train.py have printed, by their ranks."""
    found = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    return sorted(found, key=lambda each: int(each.get("RANK") or each.get("SLURM_PROCID") or 0))


def test_one_gpu(kant: Up, bin: Path) -> None:
    job = batch(
        """#!/bin/bash
#SBATCH --job-name=single-gpu
#SBATCH --account=lab123
#SBATCH --partition=default
#SBATCH --qos=normal
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=4
#SBATCH --gres=gpu:a100:1
#SBATCH --mem-per-cpu=1G
#SBATCH --constraint=a100
#SBATCH --time=00:10:00
#SBATCH --output=%x-%j.out
#SBATCH --mail-type=BEGIN,END,FAIL
#SBATCH --mail-user=ann@example.org
#SBATCH --comment="a first job"

set -e
export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK
echo "Job $SLURM_JOB_ID runs on $SLURM_JOB_NODELIST"
srun python train.py --epochs 2
"""
    )
    assert kant.over(job) == ["finished"], kant.log(job)
    (found,) = ranks(Path(f"single-gpu-{job}.out").read_text())
    assert found["args"] == ["--epochs", "2"] and len(found["CUDA_VISIBLE_DEVICES"].split(",")) == 1
    assert (found["OMP_NUM_THREADS"], found["SLURM_JOB_ACCOUNT"], found["SLURM_NTASKS"]) == ("4", "lab123", "1")
    assert "RANK" not in found, "a task alone looks for no others"
    detail = kant.job(job)
    assert (detail["account"], detail["qos"], detail["comment"]) == ("lab123", "normal", "a first job")
    assert (detail["memory_mib"], detail["cpus"]) == (4096, 4)
    assert "account lab123, qos normal, comment a first job" in verb("show", "--home", kant.home, job).out
    used = {row["account"]: row["jobs"] for row in kant.client.get("/v1/usage", by="account")["rows"]}
    assert used["lab123"] == 1
    assert verb("history", "--home", kant.home, "--by", "account").out.count("lab123") == 1


def test_a_login_shell_that_sets_its_path_anew_finds_srun(
    kant: Up, bin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many published scripts have it: `bash -l` reads /etc/profile, or ~/.bash_profile, which may set PATH."""
    (tmp_path / ".bash_profile").write_text("PATH=/usr/bin:/bin\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    text = "#!/bin/bash -l\n#SBATCH --ntasks=2\n\nsrun sh -c 'echo $SLURM_PROCID'; echo $0 $1; exit 3\n"
    job = batch(text)
    assert kant.over(job) == ["failed"] and kant.job(job)["job"]["code"] == 3
    assert sorted(kant.log(job).splitlines()) == [str(tmp_path / "job.sh"), "0", "1"]


def test_torchrun_on_one_node(kant: Up, bin: Path) -> None:
    job = batch(
        """#!/bin/bash
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=4
#SBATCH --exclusive
#SBATCH --time=1:00:00

torchrun --standalone --nproc_per_node=$SLURM_GPUS_ON_NODE train.py
"""
    )
    assert kant.over(job) == ["finished"], kant.log(job)
    found = ranks(kant.log(job))
    assert len(found) == 8, "with --exclusive the whole node is the job's"


def test_torchrun_on_two_nodes(kant: Up, bin: Path) -> None:
    job = batch(
        """#!/bin/bash
#SBATCH --job-name=multinode
#SBATCH -N 2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH --cpus-per-task=2
#SBATCH --export=ALL,NCCL_DEBUG=INFO

nodes=( $( scontrol show hostnames $SLURM_JOB_NODELIST ) )
head_node=${nodes[0]}
head_node_ip=$(srun --nodes=1 --ntasks=1 -w "$head_node" hostname --ip-address | cut -d' ' -f1)
echo "Node IP: $head_node_ip, $NCCL_DEBUG, ${#nodes[@]} nodes"

srun torchrun \\
  --nnodes=$SLURM_NNODES \\
  --nproc_per_node=$SLURM_GPUS_ON_NODE \\
  --rdzv_id=$RANDOM --rdzv_backend=c10d \\
  --rdzv_endpoint=${nodes[0]}:29517 \\
  train.py
"""
    )
    assert kant.over(job) == ["finished"], kant.log(job)
    assert "INFO, 2 nodes" in kant.log(job)
    found = ranks(kant.log(job))
    assert [each["RANK"] for each in found] == ["0", "1", "2", "3"]
    assert {each["WORLD_SIZE"] for each in found} == {"4"}
    seen = {each["SLURM_NODEID"]: each["CUDA_VISIBLE_DEVICES"] for each in found}
    devices = [one for text in seen.values() for one in text.split(",")]
    assert len(seen) == 2 and len(set(devices)) == 4, "each node has GPUs of its own"


def test_a_task_for_each_gpu(kant: Up, bin: Path) -> None:
    job = batch(
        """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=2 --gpus-per-task=1 --cpus-per-task=1
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$(expr 10000 + $(echo -n $SLURM_JOBID | tail -c 4))
export WORLD_SIZE=$(($SLURM_NNODES * $SLURM_NTASKS_PER_NODE))
srun --label bash -c 'python train.py | tee rank-$SLURM_PROCID.json'
"""
    )
    assert kant.over(job) == ["finished"], kant.log(job)
    found = ranks("\n".join(Path(f"rank-{n}.json").read_text() for n in range(4)))
    assert [each["SLURM_PROCID"] for each in found] == ["0", "1", "2", "3"]
    assert [(each["SLURM_NODEID"], each["SLURM_LOCALID"]) for each in found] == [
        ("0", "0"),
        ("0", "1"),
        ("1", "0"),
        ("1", "1"),
    ]
    assert len({each["CUDA_VISIBLE_DEVICES"] for each in found}) == 4
    assert {each["MASTER_ADDR"] for each in found} == {"127.0.0.1"}
    assert {each["MASTER_PORT"] for each in found} == {str(10000 + int(job))}
    assert all(
        each["RANK"] == each["OMPI_COMM_WORLD_RANK"] == each["PMI_RANK"] == each["SLURM_PROCID"] for each in found
    )
    assert sorted(line[:2] for line in kant.log(job).splitlines() if "RANK" in line) == ["0:", "1:", "2:", "3:"]


def test_an_array_sweeps(kant: Up, bin: Path) -> None:
    Path("params.txt").write_text("--lr 0.1\n--lr 0.01\n--lr 0.001\n")
    Path("logs").mkdir()
    array = batch(
        """#!/bin/bash
#SBATCH --array=1-3%2
#SBATCH --output=logs/%A_%a.out
#SBATCH --gres=gpu:1
PARAMS=$(sed -n "${SLURM_ARRAY_TASK_ID}p" params.txt)
srun python train.py $PARAMS --seed $SLURM_ARRAY_TASK_ID
"""
    )
    jobs = [f"{array}_{n}" for n in (1, 2, 3)]
    assert kant.over(*jobs) == ["finished"] * 3
    found = [ranks(Path(f"logs/{array}_{n}.out").read_text())[0]["args"] for n in (1, 2, 3)]
    assert found == [["--lr", value, "--seed", str(n)] for n, value in enumerate(("0.1", "0.01", "0.001"), start=1)]


def test_a_chain_of_dependencies(kant: Up, bin: Path) -> None:
    Path("job.sh").write_text("#!/bin/bash\n#SBATCH -J stage\necho stage $1 >> stages; exit ${2:-0}\n")
    first = command("sbatch", "--parsable", "--hold", "job.sh", "1").strip()
    second = command("sbatch", "--parsable", f"--dependency=afterok:{first}", "job.sh", "2", "3").strip()
    third = command("sbatch", "--parsable", f"--dependency=afternotok:{second}", "job.sh", "3").strip()
    never = command("sbatch", "--parsable", f"--dependency=afterok:{second}", "job.sh", "4").strip()
    either = command("sbatch", "--parsable", f"--dependency=afterok:{second}?afterany:{first}", "job.sh", "5").strip()
    last = command("sbatch", "--parsable", f"--dependency=after:{third}", "--wrap", "echo stage 6 >> stages").strip()
    listed = command("squeue", "-h", "-j", f"{second},{first}", "-o", "%i %t %r").split("\n")
    assert listed[:2] == [f"{first} PD JobHeldUser", f"{second} PD Dependency"]
    command("scontrol", "release", first)
    assert kant.over(first, second, third, never, either, last) == [
        "finished", "failed", "finished", "cancelled", "finished", "finished",
    ]  # fmt: skip
    done = Path("stages").read_text().split("\n")
    assert done.index("stage 1") < done.index("stage 2") < done.index("stage 3") and "stage 4" not in done
    lines = command("sacct", "-n", "-P", "-j", f"{first},{second}", "--format=JobID,JobName%20,State,ExitCode").split()
    assert lines == [f"{first}|stage|COMPLETED|0:0", f"{second}|stage|FAILED|3:0"]


def test_an_array_after_an_array_goes_index_by_index(kant: Up, bin: Path) -> None:
    Path("job.sh").write_text("#!/bin/bash\n#SBATCH --array=0-1\nexit $SLURM_ARRAY_TASK_ID\n")
    first = command("sbatch", "--parsable", "job.sh").strip()
    second = command("sbatch", "--parsable", f"--dependency=aftercorr:{first}", "--array=0-1", "--wrap", "true").strip()
    assert kant.over(f"{second}_0", f"{second}_1") == ["finished", "cancelled"]


def test_mpi_has_its_ranks(kant: Up, bin: Path) -> None:
    job = batch(
        """#!/bin/bash
#SBATCH --ntasks=6
#SBATCH --nodes=2
#SBATCH --mem-per-cpu=100M
#SBATCH --time=UNLIMITED
#SBATCH --export=NONE
module() { :; }
module load openmpi
echo "tasks $SLURM_TASKS_PER_NODE secret=${SECRET:-none}"
srun --mpi=pmix -n $SLURM_NTASKS --cpu-bind=cores bin/python train.py
srun -n 1 false || echo step failed with $?
srun -K -n 2 sh -c 'exit $((SLURM_PROCID + 3))' || echo worst is $?
"""
    )
    assert kant.over(job) == ["finished"], kant.log(job)
    log = kant.log(job)
    assert "tasks 3(x2) secret=none" in log and "step failed with 1" in log and "worst is " in log
    found = ranks(log)
    assert [each["OMPI_COMM_WORLD_RANK"] for each in found] == list("012345")
    assert [each["OMPI_COMM_WORLD_LOCAL_RANK"] for each in found] == list("012012")
    assert {each["OMPI_COMM_WORLD_SIZE"] for each in found} == {"6"} and "CUDA_VISIBLE_DEVICES" in found[0]


def test_a_job_requeues_itself_on_a_signal(kant: Up, bin: Path) -> None:
    job = batch(
        """#!/bin/bash
#SBATCH --time=0:03
#SBATCH --signal=B:USR2@2
#SBATCH --requeue
#SBATCH --open-mode=append
save() {
  echo "checkpoint of run ${SLURM_RESTART_COUNT:-0}"
  scontrol requeue $SLURM_JOB_ID
}
trap save USR2
if [ "${SLURM_RESTART_COUNT:-0}" -ge 1 ]; then echo resumed; exit 0; fi
srun sleep 60 &
wait
sleep 60
"""
    )
    assert eventually(lambda: kant.phase(job) == "finished"), kant.log(job)
    assert "resumed" in kant.log(job)
    first = kant.client.stream(kant.client.job(job, "log"), attempt=1)[1]
    assert b"checkpoint of run 0" in b"".join(first)


def test_steps_beside_each_other_have_gpus_of_their_own(kant: Up, bin: Path) -> None:
    job = batch(
        """#!/bin/bash
#SBATCH --gres=gpu:2,nvme:100 -n 2
for i in 1 2 3 4; do
  srun -n 1 --gpus=1 --exclusive sh -c 'echo begin $CUDA_VISIBLE_DEVICES; sleep 0.5; echo end $CUDA_VISIBLE_DEVICES' &
done
wait
"""
    )
    assert kant.over(job) == ["finished"]
    text = Path(f"slurm-{job}.out").read_text()
    assert text == kant.log(job), "as with Slurm its output is in a file, too"
    used: set[str] = set()
    for what, gpu in (line.split() for line in text.splitlines()):
        assert (gpu in used) is (what == "end"), text
        used ^= {gpu}
    assert text.count("begin") == 4 and len({line.split()[1] for line in text.splitlines()}) == 2


def test_a_warning_reaches_those_alone_that_handle_it(kant: Up, bin: Path) -> None:
    job = batch(
        """#!/bin/bash
#SBATCH --time=0:03 --signal=B:USR1@2
trap 'echo warned; touch stop' USR1
srun -n 2 sh -c 'while [ ! -e stop ]; do sleep 0.1; done; echo task $SLURM_PROCID ends well' &
wait; wait
"""
    )
    assert kant.over(job) == ["finished"], kant.log(job)
    lines = kant.log(job).splitlines()
    assert sorted(lines) == ["task 0 ends well", "task 1 ends well", "warned"]


def test_lists_and_orders(kant: Up, bin: Path) -> None:
    Path("job.sh").write_text("#!/bin/bash\n#SBATCH --gres=gpu:2 -J long --time=1:00:00\nsleep 600\n")
    job = command("sbatch", "--parsable", "job.sh").strip()
    assert eventually(lambda: kant.phase(job) == "running")
    head, row = command("squeue", "--me", "--name=long").splitlines()
    assert head.split() == ["JOBID", "PARTITION", "NAME", "USER", "ST", "TIME", "NODES", "NODELIST(REASON)"]
    assert row.split()[:3] == [job, "default", "long"] and row.split()[4] == "R"
    assert command("squeue", "-h", "-j", job, "-o", "%l %b %T").split() == ["1:00:00", "gres/gpu:2", "RUNNING"]
    shown = command("scontrol", "show", "job", job)
    assert f"JobId={job} JobName=long" in shown and "JobState=RUNNING" in shown and "TimeLimit=1:00:00" in shown
    assert " mix " in command("sinfo") and command("sinfo", "-h", "-o", "%P %D").split() == ["default", "1"]
    later = command("sbatch", "--parsable", "--hold", "job.sh").strip()
    for dependency, shown in ((f"afterany:{job}", job), ("", "none")):
        command("scontrol", "update", f"JobId={later}", f"Dependency={dependency}")
        assert f"Dependency={shown}\n" in command("scontrol", "show", "job", later)
    for state in ("DOWN", "UP"):
        command("scontrol", "update", "PartitionName=default", f"State={state}")
        assert f"PartitionName=default State={state}\n" in command("scontrol", "show", "partition")
    assert command("scontrol", "show", "hostnames", "gpu[01-03],login").split() == ["gpu01", "gpu02", "gpu03", "login"]
    command("scancel", "--name", "long", "--me")
    assert kant.over(job, later) == ["cancelled"] * 2
    assert "expected" in command("scancel", code=1) and "--clouds" in command("squeue", "--clouds", code=1)
    assert "seven" in command("sbatch", "--nodes=seven", "job.sh", code=1)


def test_run_starts_a_process_for_each_task(kant: Up, bin: Path) -> None:
    done = command("kant", "run", "--tasks", "3", "--gpus", "3", "--task-gpus", "1", "--", "python", "train.py")
    found = [json.loads(line.partition(": ")[2]) for line in done.splitlines() if line[:3] in ("0: ", "1: ", "2: ")]
    assert sorted(each["RANK"] for each in found) == ["0", "1", "2"]
    assert len({each["CUDA_VISIBLE_DEVICES"] for each in found}) == 3
    done = command("srun", "-n", "2", "-c", "1", "sh", "-c", "echo rank $SLURM_PROCID of $SLURM_NTASKS")
    assert sorted(line[3:] for line in done.splitlines() if "rank" in line) == ["rank 0 of 2", "rank 1 of 2"]
