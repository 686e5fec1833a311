"""The sha256 of what each command on the seed repository prints: the same on every machine, because the repository is."""

from collections.abc import Mapping

ANSWERS: Mapping[str, Mapping[str, str]] = {
    "a": {
        "ls": "f82471ced39d9846626f62a4ea4fff4d92f6810590271f017acbb0c2dc1770f4",
        "log": "2f66de2999dc4f340ac6ef5bffb8efd4d5c86417ef81fac63b134a158e8842c2",
        "grep": "d0822ac16510a08ea4b7871c0ae732aa10025afb8cb10fc3bff59e2a08f47c48",
        "sed": "590cdffbe5bf77cdc852d0415f765c44d85741a4d77e05f16a6c8d5c01e63e32",
        "search": "0a5557d0c350910ded3108ab1e73bdbb4e4a3c24b35d64f4bfafc0385a2ea9a9",
        "cat": "8ead12c7dc3828b5bc8bd901ebdd5dc4fcb1ab6541b10417a9fdfdaa58fbcc68",
        "find": "1d8d8b58e5cea07c6a00d2180e60aafb9ee77a54940521f325ebceb187e337a2",
        "read": "d419d8193b98bd2b9c1842388eef913cd26d795cc6d1995f5a92625a84851d0f",
        "count": "19e75cbd2675192209125fdb505fd765be8bc706e275ba117f81989b96a8343d",
        "show": "63018f4a994f6ccd526f9abe3e5fbac48bbae4b74b24b072822f5336918b46a2",
        "head": "d174e01e886801d9d801a3fb51c59d8ebcd8325db81e96027459f4900e1538ec",
        "imports": "b3b554c33eec0a40b66a9ae06897797e5830cc84d5b5bac006be416eceeff839",
        "names": "0334b9160fccb159fab4125c34ee721e0ed0b3eca98b827fbc95a4bd49428521",
        "digest": "34f5a8b6060560d89d719dfb19e25ac49484144bbd96c15c0c8cd752fd26494b",
        "fixed": "f3b1ff2949e8249ab78b3fd6c68d1c7367f6828fca23bbec9252947d0d15ac27",
    },
    "b": {
        "ls": "02ec0feb10521dde21d9c7025c1e29fc9d233984658b2e75528dc6507b4f37e0",
        "log": "bd1b47ff814a9151fe2731961f04aa82ef4c5cad065817ebbab950d57888438b",
        "grep": "a2b70032a0a5b86055d780e297c79dd1cf7de5d20f50846e60e7f48a942cdef1",
        "sed": "51a95e9422af2a6e68f3d4c9ba29bc063e9457234bc96b22cb68fa5f1d6d0deb",
        "search": "06f4f2eb9aeab8e85ff3aa4a22966de8758b08eb0d2a2c3b79b7c6fd981970f0",
        "cat": "8ead12c7dc3828b5bc8bd901ebdd5dc4fcb1ab6541b10417a9fdfdaa58fbcc68",
        "find": "1d8d8b58e5cea07c6a00d2180e60aafb9ee77a54940521f325ebceb187e337a2",
        "read": "94150f3e6c6203505e1f307a3a51e808487efad56f335a335cef1e5ce6ba8387",
        "count": "38a72fa585c0b9918715c9ad686a64832252fffb75d395a73840ca1e15e260eb",
        "show": "d85f740f75a46940927674c3aa4104b976f488cadcf244ba562a28a0d0b4fce5",
        "head": "dfd32ff7402f2653e8d73c444e6e4ec64f094ad761816626485ca96722c2e5ac",
        "imports": "9201f2d317e2a046600d4bf84af08fcdef271c959f1c073feab5f06d6b1f56dc",
        "names": "0334b9160fccb159fab4125c34ee721e0ed0b3eca98b827fbc95a4bd49428521",
        "digest": "0bfeb23cc9ed454f2246f6fcb3b42e4a3ec20c5fb0c7d4bbbb0414107c88e67d",
        "fixed": "7cfd9150be32c6458ce30ff088b96889f337a9ad15aca921a304d7c6e5e183a3",
    },
}
