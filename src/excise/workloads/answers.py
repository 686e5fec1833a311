"""The sha256 of what each command on the seed repository prints: the same on every machine, because the repository is."""

from collections.abc import Mapping

ANSWERS: Mapping[str, Mapping[str, str]] = {
    "a": {
        "ls": "60f8c5ab63011d48052e1dee2fe6d95f2a493cad363fe823a998c88ebe982add",
        "log": "2f66de2999dc4f340ac6ef5bffb8efd4d5c86417ef81fac63b134a158e8842c2",
        "grep": "d0822ac16510a08ea4b7871c0ae732aa10025afb8cb10fc3bff59e2a08f47c48",
        "sed": "590cdffbe5bf77cdc852d0415f765c44d85741a4d77e05f16a6c8d5c01e63e32",
        "search": "0a5557d0c350910ded3108ab1e73bdbb4e4a3c24b35d64f4bfafc0385a2ea9a9",
        "cat": "8ead12c7dc3828b5bc8bd901ebdd5dc4fcb1ab6541b10417a9fdfdaa58fbcc68",
        "find": "2264cf1ae93bafb02307356e3fb1d1eea684182e67fad84f1dd013180e037ae3",
        "read": "d419d8193b98bd2b9c1842388eef913cd26d795cc6d1995f5a92625a84851d0f",
        "count": "19e75cbd2675192209125fdb505fd765be8bc706e275ba117f81989b96a8343d",
        "show": "63018f4a994f6ccd526f9abe3e5fbac48bbae4b74b24b072822f5336918b46a2",
        "head": "d174e01e886801d9d801a3fb51c59d8ebcd8325db81e96027459f4900e1538ec",
        "imports": "b3b554c33eec0a40b66a9ae06897797e5830cc84d5b5bac006be416eceeff839",
        "names": "0334b9160fccb159fab4125c34ee721e0ed0b3eca98b827fbc95a4bd49428521",
        "digest": "01872ffb049da2e5a781a71a3a8e81cf27d9be0e217e7b73792a6313d187a294",
        "fixed": "ea8bb161c27ec09edd6fd22817e0da92f7a68f2c49ed6601d46582aa44843577",
    },
    "b": {
        "ls": "c0e0ab825ea11997733c101f0c109c41271a5f3bb1b085730bd7ba2b57e79c68",
        "log": "bd1b47ff814a9151fe2731961f04aa82ef4c5cad065817ebbab950d57888438b",
        "grep": "a2b70032a0a5b86055d780e297c79dd1cf7de5d20f50846e60e7f48a942cdef1",
        "sed": "51a95e9422af2a6e68f3d4c9ba29bc063e9457234bc96b22cb68fa5f1d6d0deb",
        "search": "06f4f2eb9aeab8e85ff3aa4a22966de8758b08eb0d2a2c3b79b7c6fd981970f0",
        "cat": "8ead12c7dc3828b5bc8bd901ebdd5dc4fcb1ab6541b10417a9fdfdaa58fbcc68",
        "find": "2264cf1ae93bafb02307356e3fb1d1eea684182e67fad84f1dd013180e037ae3",
        "read": "94150f3e6c6203505e1f307a3a51e808487efad56f335a335cef1e5ce6ba8387",
        "count": "38a72fa585c0b9918715c9ad686a64832252fffb75d395a73840ca1e15e260eb",
        "show": "d85f740f75a46940927674c3aa4104b976f488cadcf244ba562a28a0d0b4fce5",
        "head": "dfd32ff7402f2653e8d73c444e6e4ec64f094ad761816626485ca96722c2e5ac",
        "imports": "9201f2d317e2a046600d4bf84af08fcdef271c959f1c073feab5f06d6b1f56dc",
        "names": "0334b9160fccb159fab4125c34ee721e0ed0b3eca98b827fbc95a4bd49428521",
        "digest": "e804881128719bc44822bb23529f35c3d56d6cd19a7e7bfb01f06be4d955d313",
        "fixed": "8d8a315bae71f52c83d030d0c7ec25ed71a6e2b748f0df2bfe2cac3c960e1502",
    },
}
