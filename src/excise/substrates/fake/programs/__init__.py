"""The pretend machine's programs: what they print and how they exit, in as few lines as will do."""

from collections.abc import Mapping

from excise.substrates.fake.proc import Program
from excise.substrates.fake.programs import asking, copying, printing, processes, trees

PROGRAMS: Mapping[str, Program] = {
    "[": asking.test,
    "cat": copying.cat,
    "chmod": trees.chmod,
    "cp": trees.cp,
    "du": trees.du,
    "echo": printing.echo,
    "env": processes.env,
    "false": printing.false,
    "head": copying.head,
    "id": asking.id_,
    "kill": processes.kill,
    "ln": trees.ln,
    "ls": trees.ls,
    "mkdir": trees.mkdir,
    "mv": trees.mv,
    "perl": processes.perl,
    "printf": printing.printf,
    "pwd": asking.pwd,
    "readlink": trees.readlink,
    "rm": trees.rm,
    "seq": printing.seq,
    "setsid": processes.setsid,
    "sleep": processes.sleep,
    "stty": asking.stty,
    "tail": copying.tail,
    "tee": copying.tee,
    "test": asking.test,
    "touch": trees.touch,
    "true": printing.true,
    "tty": asking.tty,
    "wc": copying.wc,
    "whoami": asking.whoami,
    "yes": printing.yes,
}
