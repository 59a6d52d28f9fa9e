"""The columns of an engine's tables. The tables are the whole state of an engine, so a copy of them is a fork.

Lengths and counts are integers. Times are seconds in double precision, computed in vLLM's own order of operations.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Table = NDArray[np.int64]
Times = NDArray[np.float64]

# --- a request, integers ------------------------------------------------------------------------------------------
PROMPT = 0  # tokens of the prompt
OUTPUT = 1  # tokens to generate; the request ends with the last of them
DONE = 2  # tokens generated so far
COMPUTED = 3  # tokens whose keys and values are in the KV, or are being computed by the step under way
HELD = 4  # blocks held
HASHED = 5  # how many leading blocks of these are in the prefix cache
BLOCK_ROW = 6  # its row in the table of held blocks, -1 without one
PREEMPTED = 7  # how often it was preempted, and so lost its blocks
CACHED = 8  # tokens found in the prefix cache when it was first scheduled; -1 before
SWAPPED = 9  # tokens whose KV is in host memory; with a KV connector: tokens with KV after the transfer
SHARED_FROM = 10  # start of its contents in the list of shared contents
SHARED = 11  # how many leading blocks have such contents
OWN = 12  # id of the contents of its first unshared KV block; the next has OWN - 1, …; shared ids are not negative
TIE = 13  # the last criterion of every sort order
STATE = 14
AHEAD = 15  # with asynchronous scheduling: tokens that the current steps will output; negative after a preemption
MOST = 16  # `max_tokens`: it ends after these even without a stop token; schedulers do not know OUTPUT
DRAFTS = 17  # tokens drafted for its next step
SEED = 18  # the seed from which the acceptance of its drafts is drawn
FLYING = 19  # with asynchronous scheduling and sliding windows or a KV connector: tokens that the current step computes
REMOTE = 20  # 1: its KV is elsewhere or on its way; 2: it has come from host memory, but is not counted yet;
# 3: it is sent to another engine once the request has ended
COMES = 21  # leading prompt tokens whose KV comes by the KV connector; the load of the others fails
GONE = 22  # by KV group, one column each: leading blocks that its sliding window has passed and freed
REQUEST_WIDTH = 22  # and a column for each KV group
OFFERED = 23  # with host memory, which needs one KV group: number of its blocks in host memory
STORED = 24  # leading blocks whose storing has been requested
NEXT_ENDED = 25  # the number + 1 of the next ended request in the list that FIRST_LEFT begins; 0: none
MORE_COLUMNS = 3  # with host memory, or KV that is sent

# --- values of STATE ----------------------------------------------------------------------------------------------
WAITING, RUNNING, FINISHED, WITHDRAWN, LOADING = range(5)

# --- a request, times and its priority ----------------------------------------------------------------------------
ARRIVAL = 0
PRIORITY = 1  # lower goes first
FIRST = 2  # when its first token appeared; NaN before
LAST = 3  # when its latest token appeared
GAP = 4  # longest time between two of its tokens
FINISH = 5  # NaN before
LOADED = 6  # how many seconds the KV of its prompt takes to come; once it is asked for, when it is here (or FOREVER);
# the same for its KV that is sent, once it has ended
TIMES_WIDTH = 7
FOREVER = float("inf")

# --- limits of an engine ------------------------------------------------------------------------------------------
MAX_SEQS = 0  # requests that run at once
TOKENS = 1  # tokens a step
BLOCK = 2  # tokens a block
USABLE = 3  # blocks of the KV cache, without the one that vLLM reserves
CACHING = 4  # 1: prefix cache
BY_PRIORITY = 5  # 1: order by priority, then arrival; 0: by arrival
PREEMPTIVE = 6  # 1: waiting requests preempt running ones of worse priority
SWAP = 7  # 1: preempted requests keep their KV in host memory; 0: recompute
LONG = 8  # tokens a step of a request that is not alone; 0: as many as fit
CHUNKED = 9  # 1: a prompt may be computed in parts; 0: a request is admitted with all its tokens
WATERMARK = 10  # blocks that an admission leaves free while any request runs
WHOLE = 11  # 1: admitted only if all tokens so far fit in free blocks; 0: if those of this step do
ASYNC = 12  # 1: a step is planned while the one before it is computed
SPECULATIVE = 13  # tokens drafted a step; 0: no speculation
LOOKAHEAD = 14  # KV slots for drafts beyond the tokens of a step
DROPPED = 15  # 1: a hit leaves out the last block, as drafts are made from hidden states
ACCEPTED = 16  # the probability that a draft is accepted, in 65536ths
SLIDING = 17  # 1: some KV group has a sliding window
GROUPS = 18  # KV groups: layers that share blocks; each request holds as many blocks in one as in another
CONNECTED = 19  # 1: the engine has a KV connector
HOST = 20  # blocks of host memory
PROMPT_ONLY = 21  # 1: host memory keeps only blocks of prompts
SENDS = 22  # 1: the KV of requests that have ended is sent to other engines, and held until it is
FAILS = 23  # 1: a request fails if the KV that it waits for does not come
WINDOW = 24  # by KV group, every second column: tokens of its sliding window, 0 for full attention
CAP = 25  # likewise by KV group: the most blocks that an admission reserves in the group

# --- the state of an engine, integers -----------------------------------------------------------------------------
FREE = 0  # blocks free
RUNS = 1  # requests that run
WAITS = 2  # requests that wait
PLANNED = 3  # requests in the current step; 0: no step
ENDED = 4  # requests that have finished since the caller last looked
STEPS = 5  # steps completed
PREEMPTIONS = 6
ADMIT = 7  # how many requests the next step may still admit; -1: any number
MOVED = 8  # tokens to swap in the current step
LOOKED_UP = 9  # tokens that were looked up in the prefix cache
HITS = 10  # tokens found in the cache
TOKENS_DONE = 11  # tokens computed by completed steps
HEAD = 12  # first and last free block, in order of eviction; -1 if there is none
TAIL = 13
MOST_HELD = 14  # most blocks held at once
RAN = 15  # requests in the latest step that was completed: the first rows of the plan
NEXT_PLANNED = 16  # requests in the step that follows the current one; 0: none is planned
LOOKED = 17  # 1: the step that follows the current one has been planned, even if it has no request
TURN = 18  # the first row of the plan of the current step
LOADS = 19  # requests whose KV is arriving or has arrived: the last rows of the waiting ones, from the end
STORES = 20  # blocks that are being stored in host memory
HOST_HITS = 21  # tokens found in host memory
FIRST_LEFT, LAST_LEFT = 22, 23  # the number + 1 of the requests that have ended: with host memory since the last plan,
# with KV that is sent: those whose KV has not been sent yet
STATE_WIDTH = 24  # and again as many for host memory's own FREE, HEAD and TAIL: all its blocks, by their last use

# --- the clock of an engine ---------------------------------------------------------------------------------------
CLOCK = 0  # when the latest step ended
END = 1  # when the current step ends
BUSY = 2  # seconds of steps
KV_SECONDS = 3  # sum over steps of blocks held x seconds
NEXT_MS = 4  # how long the step after the current one takes
FLUSHED = 5  # no step begins before this time
STORE_STREAM, LOAD_STREAM = 6, 7  # when host memory has stored and loaded everything requested
BLOCKED = 8  # no step can be planned before this time, unless a request arrives
CLOCK_WIDTH = 9  # and a time for each block of host memory: when it is stored

# --- the latency of a step, in ms: max(FLOOR + EXPERTS (1 - MISSED ** tokens), SLOPE tokens + FIXED) + KV decode
# + CONTEXT chunks + OVERHEAD + SWAP ---
FLOOR, SLOPE, FIXED, KV, CONTEXT, OVERHEAD, SWAP_MS, EXPERTS, MISSED = range(9)

# --- a row of a plan ------------------------------------------------------------------------------------------------
WHO = 0  # the request
COUNT = 1  # the tokens computed
SAMPLES = 2  # tokens that it may output: 0 for a part of a prompt, -1 if it had ended (not in a synchronous `run`)
PLAN_WIDTH = 3

# --- a block of the KV --------------------------------------------------------------------------------------------
USERS = 0  # requests that hold it
CONTENT = 1  # its content; NOTHING if it is not in the prefix cache
NEXT = 2  # neighbours among the free blocks
BEFORE = 3
NEXT_SAME = 4  # neighbours in the chain of its bucket, oldest first
BEFORE_SAME = 5
BLOCK_WIDTH = 6
NOTHING = -(1 << 62)
PADDED = 1 << 20  # added to SAMPLES if the drafts are only padding, of which none is accepted

# --- why `run` returned -------------------------------------------------------------------------------------------
REACHED, IDLE, STOPPED, STUCK = range(4)
