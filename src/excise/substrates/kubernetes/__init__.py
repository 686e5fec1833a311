"""`kubernetes`: a pod for each sandbox, actions by pod exec, which is what people pay today; `kubernetes+guest`: by ours."""
