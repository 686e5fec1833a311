"""`kubernetes`: a pod for each sandbox, actions by pod exec, which is what people pay today; `kubernetes+guest`: by ours."""

from excise.substrates.kubernetes.guest import KubernetesGuestSubstrate
from excise.substrates.kubernetes.substrate import KubernetesSubstrate

__all__ = ["KubernetesGuestSubstrate", "KubernetesSubstrate"]
