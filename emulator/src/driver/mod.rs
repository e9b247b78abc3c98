//! The functions of the CUDA driver API that scaled-gemm calls.
