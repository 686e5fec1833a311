"""`gvisor` as a Substrate: runsc's own way to run a program in a sandbox, which is what people pay."""

from excise.substrate import Capabilities, Snapshot
from excise.substrates.gvisor.container import Container
from excise.substrates.gvisor.handle import GvisorHandle
from excise.substrates.gvisor.making import Gvisor
from excise.substrates.gvisor.program import Platform, Runsc


class GvisorSubstrate(Gvisor[GvisorHandle]):
    """Containers of runsc, an action a `runsc exec`."""

    def __init__(self, *, runsc: str | None = None, platform: Platform | None = None) -> None:
        super().__init__("gvisor", runsc, platform)

    def _able(self, runsc: Runsc, common: Capabilities) -> Capabilities:
        return common

    async def _begin(self, container: Container, id: str, snapshot: Snapshot | None, lease_s: float) -> GvisorHandle:
        await container.run()
        return GvisorHandle(
            self,
            container,
            id=id,
            capabilities=self._capabilities,
            snapshot=snapshot,
            lease_s=lease_s,
            on_close=self.forget,
        )
