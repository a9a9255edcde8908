"""C++ for the CPU: compiled at first use with the system's compiler, cached, called through ctypes."""
