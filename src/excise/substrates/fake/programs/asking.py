"""Programs that answer a question: about files, users, terminals, where one is."""

from excise.substrates.fake.files import Directory, File, Link, Node
from excise.substrates.fake.pipes import Terminal
from excise.substrates.fake.proc import Proc
from excise.substrates.fake.programs.voice import complain, encoded
from excise.substrates.fake.special import node_at


async def test(proc: Proc, argv: list[str]) -> int:
    words = argv[1:]
    if argv[0] == "[":
        if words[-1:] != ["]"]:
            await complain(proc, "[", "missing ]")
            return 2
        words = words[:-1]
    try:
        return int(not _holds(proc, words))
    except ValueError:
        await complain(proc, argv[0], "Illegal number")
        return 2


def _holds(proc: Proc, words: list[str]) -> bool:
    for joint, both in (("-o", any), ("-a", all)):
        if joint in words[1:-1]:
            at = words.index(joint)
            return both([_holds(proc, words[:at]), _holds(proc, words[at + 1 :])])
    match words:
        case []:
            return False
        case [word]:
            return word != ""
        case ["!", *rest]:
            return not _holds(proc, rest)
        case [operator, word]:
            return _is(proc, operator, word)
        case [left, "=" | "==", right]:
            return left == right
        case [left, "!=", right]:
            return left != right
        case [left, operator, right]:
            a, b = int(left), int(right)
            return {"-eq": a == b, "-ne": a != b, "-lt": a < b, "-le": a <= b, "-gt": a > b, "-ge": a >= b}[operator]
        case _:
            raise ValueError(words)


def _is(proc: Proc, operator: str, word: str) -> bool:
    if operator in ("-n", "-z"):
        return (word != "") == (operator == "-n")
    if operator == "-t":
        return int(word) in proc.files and isinstance(proc.files.get(int(word)), Terminal)
    try:
        node = node_at(proc, word, follow=operator not in ("-L", "-h"))
    except OSError:
        return False
    return _node_is(proc, operator, node)


def _node_is(proc: Proc, operator: str, node: Node) -> bool:
    match operator:
        case "-f":
            return isinstance(node, File)
        case "-d":
            return isinstance(node, Directory)
        case "-L" | "-h":
            return isinstance(node, Link)
        case "-s":
            return isinstance(node, File) and len(node.data) > 0
        case "-x":
            return bool(node.mode & 0o111)
        case "-r" | "-w":
            try:
                proc.who.check(node, 4 if operator == "-r" else 2)
            except OSError:
                return False
            return True
        case _:
            return True


async def pwd(proc: Proc, argv: list[str]) -> int:
    await proc.write(1, encoded(proc.cwd + "\n"))
    return 0


async def id_(proc: Proc, argv: list[str]) -> int:
    name = proc.machine.user_name(proc.who.uid)
    option = argv[1] if len(argv) > 1 else ""
    text = {"-u": str(proc.who.uid), "-g": str(proc.who.gid), "-un": name, "-gn": name}.get(
        option, f"uid={proc.who.uid}({name}) gid={proc.who.gid}({name})"
    )
    await proc.write(1, encoded(text + "\n"))
    return 0


async def whoami(proc: Proc, argv: list[str]) -> int:
    return await id_(proc, ["id", "-un"])


async def tty(proc: Proc, argv: list[str]) -> int:
    known = isinstance(proc.files.get(0), Terminal)
    await proc.write(1, b"/dev/pts/0\n" if known else b"not a tty\n")
    return 0 if known else 1


async def stty(proc: Proc, argv: list[str]) -> int:
    terminal = proc.files.get(0)
    if not isinstance(terminal, Terminal):
        return await complain(proc, "stty", "'standard input': Inappropriate ioctl for device")
    if argv[1:] == ["size"]:
        await proc.write(1, b"%d %d\n" % (terminal.rows, terminal.columns))
    elif argv[1:] == ["-echo"]:
        terminal.echoes = False
    return 0
