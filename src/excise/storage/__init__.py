"""Images and where they are kept: root file systems by name, unpacked with care into a content-addressed cache."""
