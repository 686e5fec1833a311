"""Every piece of shell text the cases run, in one place.

Only POSIX sh and coreutils (and `setsid`) are assumed inside a sandbox. Names are relative to the working directory,
because not every substrate has a private /tmp. A process's being alive is seen by a file growing, since pids may belong
to another namespace.
A constant whose comment says `args` is run as `Exec(("sh", "-c", TEXT, "sh", *args))`; the others as `Shell(TEXT)`.
"""

# ---- one process
TRUE = "true"
FALSE = "false"
ECHO_HI = "echo hi"
ECHO_OK = "echo ok"
EXIT_WITH = 'exit "$1"'  # args: the code
KILL_SELF = 'kill -"$1" $$'  # args: the signal's number
PRINT_ARGUMENTS = "printf '<%s>\\n' \"$@\""  # args: any
PRINT_VALUE = 'printf %s "$VALUE"'
PRINT_ENVIRONMENT = "env"
PRINT_WORKDIR = "pwd"
PRINT_USER = "id -u"
UNICODE = "echo 'grüße ☃ 🙂'; echo 'fehler ß' >&2"
BOTH_STREAMS_FROM_FILE = "cat bytes; cat bytes >&2"
COPY_STDIN = "cat"
CAT_BLOCK_64_TIMES = "\n".join(["cat block"] * 64)
TOUCH_RAN = "touch ran"

# ---- waiting for one another
NAP = "sleep 0.2"
SLEEP_LONG = "sleep 1000"
WAIT_FOR_GO = "while test ! -e go; do sleep 0.02; done; echo went"
WAIT_FOR_GO_AND_SAY = 'while test ! -e go; do sleep 0.02; done; echo "$1"'  # args: a number
MAKE_GO = "touch go"
SAY_STARTED_THEN_SLEEP = "touch started; sleep 1000"
WAIT_FOR_STARTED = "while test ! -e started; do sleep 0.02; done"

# ---- what an action leaves running, and what it takes with it
LEAVE_SLEEPER = "sleep 1000 & echo hi"
LEAVE_SLEEPER_HOLDING_PIPE = "sleep 1000 & cat block"
ENOUGH = "enough"
"""A file that ends what beats."""
BEAT = f"while test ! -e {ENOUGH}; do echo x >> beat; sleep 0.02; done"
LEAVE_BEAT = f"({BEAT}) & echo left"
WAIT_FOR_BEAT = "while test ! -s beat; do sleep 0.02; done"
BEAT_IN_CHILD = f"({BEAT}) & sleep 1000"
BEAT_DETACHED = f"setsid sh -c '({BEAT}) </dev/null >/dev/null 2>&1 &' & sleep 1000"
BEAT_UNMARKED = f"env -i PATH=\"$PATH\" setsid sh -c '({BEAT}) </dev/null >/dev/null 2>&1 &' & sleep 1000"
BEAT_THERE = 'while :; do echo x >> "$1"; sleep 0.02; done'  # args: an absolute path
SPEAK_THEN_BEAT = f"echo before; echo aside >&2; {BEAT}"

# ---- sessions
SET_STATE = "cd sub; plain=one; export EXPORTED=two; greet() { echo three; }"
SHOW_STATE = 'pwd; echo "$plain"; sh -c \'echo "$EXPORTED"\'; greet'
SET_KEPT = "kept=yes"
CD_SUB = "cd sub"
SHOW_KEPT = 'pwd; echo "[$kept]"'
BEAT_AS_CHILD_OF_SESSION = f"sh -c '{BEAT}'"
STUCK = f"trap '' INT TERM HUP QUIT; {BEAT}"
EXIT_3 = "exit 3"
EXIT_7_IN_SUBSHELL = "(exit 7)"
UNTERMINATED_QUOTE = 'echo "never closed'
SYNTAX_ERROR = "if true; then )"
RETURN_5 = "return 5"
BREAK = "break"
ORDERED = tuple(f"echo {c}1 >> log; sleep 0.1; echo {c}2 >> log" for c in "abcd")
SET_SIDE_A = "side=a; while test ! -e go; do sleep 0.02; done; echo $side"
SET_SIDE_B = "echo [$side]; touch go"
FORGE = "\n".join(f"echo 0 >&{fd}" for fd in range(3, 21))
FORGE_IN_SUBSHELL = f"(\n{FORGE}\nexit 9\n) 2>/dev/null"
FORGE_IN_CHILD = "sh -c '" + "\n".join(f"echo 0 >> /proc/self/fd/{fd}" for fd in range(3, 21)) + "\nexit 8' 2>/dev/null"

# ---- output
INTERLEAVED = "\n".join(f"echo out{n}; echo err{n} >&2" for n in range(50))
LONG_MIDDLE = "printf 0123456789; head -c 200000 /dev/zero; printf 9876543210; printf abcdefghijKLMNOPqrstuvwxyz >&2"
FLOOD = "while :; do head -c 65536 /dev/zero; echo x >> progress; done"
WAIT_FOR_PROGRESS = "while test ! -s progress; do sleep 0.02; done"
TWO_STREAMS_EXIT_4 = "echo one; echo two >&2; exit 4"
FIRST_WAIT_SECOND = "echo first; while test ! -e go; do sleep 0.02; done; echo second"
ARM_TRAP = "trap 'echo caught; exit 7' TERM; echo armed; while :; do sleep 0.02; done"
TICK = "while :; do echo x; sleep 0.02; done"

# ---- terminals
TERMINAL_SIZE = "test -t 0 && test -t 1 && test -t 2 && stty size"
ANY_TERMINAL = "test -t 0 || test -t 1 || test -t 2"
# Twice: a signal that tells of a new size may end the first.
SIZE_PER_LINE = "while read line || read line; do stty size; done"

# ---- start states
STEP_1 = "echo 1 >> order"
STEP_2 = "echo 2 >> order"
STEP_3 = "echo 3 >> order"
STEP_FAILS = "echo went-wrong; exit 9"
STEP_PRINTS_TOKEN = 'echo "$TOKEN"; echo "$TOKEN" >&2; exit 1'  # noqa: S105 - no password, a variable's name
PRINT_TOKEN = 'printf %s "$TOKEN"'  # noqa: S105 - no password, a variable's name
BOOT = f"sleep 0.2; touch up; {BEAT}"
IS_UP = "test -e up"
COUNT_PROBE = "echo probe >> probes"
CAT_PROBES = "cat probes"
CAT_ORDER = "cat order"
CAT_FETCHED = "cat fetched"
NEVER_READY = "false"
SHOW_PLAIN = 'echo "[$plain]"'
SET_PLAIN = "plain=one"
MOVE_AND_EXPORT = "mkdir -p 'a b'; cd 'a b'; plain=one; export SHOWN=\"it's two\""
SHOW_MOVED = 'pwd; sh -c \'echo "[$SHOWN]"\'; echo "[$plain]"'
EXPORT_TOKEN = 'export COPY="x$TOKEN"'  # noqa: S105 - no password, a variable's name

# ---- copies of a memory
DRAW = "cat /proc/sys/kernel/random/uuid"
MACHINE_ID = "cat /etc/machine-id"
BOOT_ID = "cat /proc/sys/kernel/random/boot_id"

# ---- files
MAKE_LINK = "ln -s file link"
IS_EXECUTABLE = "test -x tool"
CAT_FILE = "cat file"
IS_THERE = 'test -e "$1"'  # args: a path

CAT_MOUNTED = "cat /mnt/excise/given"
WRITE_MOUNTED = "echo x > /mnt/excise/new"

# ---- limits
EAT_256_MIB = "x=0123456789abcdef\n" + 'x="$x$x"\n' * 24 + "echo survived"
START_64_PROCESSES = "sleep 1000 &\n" * 64 + "echo survived"
FILL_64_MIB = "head -c 67108864 /dev/zero > big && echo survived"
REMOVE_BIG = "rm big; echo small > little; cat little"

# ---- what is visible from inside
# args (as $0): a nonce, to be found in its command line
SAY_PID_AND_STAY = 'cat "/proc/$$/cmdline" > own; echo $$ > pid; while :; do sleep 0.05; done'
WAIT_FOR_PID = "while test ! -s pid; do sleep 0.02; done; cat pid"
COMMAND_LINE_OF = 'cat "/proc/$1/cmdline"'  # args: a pid
LISTENERS = "cat /proc/net/tcp"
ROUTES = "cat /proc/net/route"
IPC_NAMESPACE = "readlink /proc/self/ns/ipc"
USER_NAMESPACE = "readlink /proc/self/ns/user"
IDS_OUTSIDE = "cat /proc/self/uid_map"

# ---- a port; perl-base is part of every Debian, and sh alone has no sockets. It answers each line with the same line.
ECHO_SERVER = (
    "perl -MIO::Socket::INET -e '"
    "$s = IO::Socket::INET->new(Listen => 1, LocalAddr => q(127.0.0.1), LocalPort => 47801, ReuseAddr => 1) or die; "
    "open(F, q(>), q(started)); close(F); $c = $s->accept; $c->autoflush(1); while (<$c>) { print $c $_ }'"
)
ECHO_PORT = 47801

# ---- out: what a server says, by way of the proxy that the variables name, if they do. args: its host and port
FETCH = (
    "perl -MIO::Socket::INET -e '"
    "($host, $port) = @ARGV; $to = ($ENV{http_proxy} // q()) =~ m{^http://([^/]+)} ? $1 : qq($host:$port); "
    "$s = IO::Socket::INET->new(PeerAddr => $to, Timeout => 10) or die; "
    "print $s qq(GET http://$host:$port/ HTTP/1.0\\r\\n\\r\\n); local $/; $_ = <$s>; "
    'm{^HTTP/1.. 200 .*?\\r\\n\\r\\n(.*)}s or die; print $1\' "$1" "$2"'
)
FETCH_IN_STEP = f'{FETCH} > fetched && printf %s "$http_proxy" > proxy'

END_BELOW = """
ls -l /proc/[0-9]*/cwd 2>/dev/null | while read -r line; do
    case $line in *" -> $1" | *" -> $1/"*) pid=${line#*/proc/}; kill -9 "${pid%%/*}" 2>/dev/null ;; esac
done
sleep 0.1
"""
