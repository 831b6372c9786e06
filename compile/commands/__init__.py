"""The commands of speccompile beside compiling: what to do with a bundle."""
