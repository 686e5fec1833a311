"""What can go wrong, sorted by who must act."""


class ExciseError(Exception):
    """Every error Excise raises on purpose."""


class SpecError(ExciseError):
    """The request is wrong: fix it. Trying again, here or elsewhere, will not help."""


class Unsupported(SpecError):  # noqa: N818 - the name users catch, and what it says
    """This substrate does not have the verb or ability; its Capabilities say so beforehand."""


class SubstrateError(ExciseError):
    """The substrate could not deliver a sandbox: try again later or elsewhere."""


class CapacityError(SubstrateError):
    """There is no room now."""


class CreateError(SubstrateError):
    """The sandbox could not be made."""


class ReadyTimeout(SubstrateError):  # noqa: N818
    """The sandbox was made but did not answer a first command in time."""


class SandboxLost(ExciseError):  # noqa: N818
    """The machinery under a running sandbox failed: restart the rollout, never score it."""
