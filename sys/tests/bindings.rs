//! What the bindings promise: sizes and values of the header, and a library that loads where there is one.

use std::mem::size_of;

use cublaslt_sys::*;

#[test]
fn sizes_are_those_of_every_version() {
    assert_eq!(size_of::<cublasLtMatmulAlgo_t>(), 64);
    assert_eq!(size_of::<cublasLtMatmulHeuristicResult_t>(), 96);
    assert_eq!(size_of::<cublasStatus_t>(), 4);
    assert_eq!(size_of::<cudaDataType_t>(), 4);
}

#[test]
fn scale_modes_and_their_attributes_have_the_published_values() {
    use cublasLtMatmulDescAttributes_t as Attribute;
    use cublasLtMatmulMatrixScale_t as Mode;
    assert_eq!(Mode::CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F.0, 0);
    assert_eq!(Mode::CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3.0, 1);
    assert_eq!(Mode::CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0.0, 2);
    assert_eq!(Mode::CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F.0, 3);
    assert_eq!(Mode::CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F.0, 4);
    assert_eq!(Mode::CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F.0, 5);
    assert_eq!(Mode::CUBLASLT_MATMUL_MATRIX_SCALE_PER_BATCH_SCALAR_32F.0, 6);
    assert_eq!(Attribute::CUBLASLT_MATMUL_DESC_FAST_ACCUM.0, 25);
    assert_eq!(Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_MODE.0, 31);
    assert_eq!(Attribute::CUBLASLT_MATMUL_DESC_D_OUT_SCALE_MODE.0, 37);
    assert_eq!(Attribute::CUBLASLT_MATMUL_DESC_BATCH_INVARIANCE_FLAGS.0, 41);
    assert_eq!(cudaDataType_t::CUDA_R_8F_E4M3.0, 28);
    assert_eq!(cudaDataType_t::CUDA_R_8F_E5M2.0, 29);
}

#[test]
fn flags_of_the_high_half_are_not_lost() {
    assert_eq!(numerical_impl::GAUSSIAN, 1 << 32);
    assert_eq!(numerical_impl::INPUT_8F_E5M2, 0x80_0000);
}

#[test]
fn not_a_library_is_an_error() {
    // SAFETY: nothing has this name, so nothing is loaded.
    assert!(unsafe { CublasLt::open("/no/such/libcublasLt.so.13") }.is_err());
    // SAFETY: libc is loaded and harmless; it lacks the functions asked for.
    assert!(unsafe { CublasLt::open("libc.so.6") }.is_err());
}

#[test]
fn the_library_loads_and_tells_its_version() {
    let names = std::env::var("SCALED_GEMM_CUBLASLT").into_iter();
    let names = names.chain(["libcublasLt.so.13", "libcublasLt.so.12"].map(String::from));
    // SAFETY: NVIDIA's library under its own name, or the file that the tester named.
    let found = names.into_iter().find_map(|name| unsafe { CublasLt::open(name) }.ok());
    let Some(api) = found else {
        assert!(
            std::env::var_os("SCALED_GEMM_REQUIRE_CUBLASLT").is_none_or(|v| v != "1"),
            "SCALED_GEMM_REQUIRE_CUBLASLT=1, but no cuBLASLt was found; set SCALED_GEMM_CUBLASLT to its file"
        );
        eprintln!("skipped: no cuBLASLt on this machine (set SCALED_GEMM_CUBLASLT to its file)");
        return;
    };
    // SAFETY: takes nothing, returns a number, needs no GPU.
    let version = unsafe { api.cublasLtGetVersion() }.expect("present in every version");
    assert!(version >= 120_000, "{version}");
    // A function that came with 13.5 is there or is an error: never a panic, never a failure to load.
    assert_eq!(api.cublasLtMatmulAlgoGetHeuristicForStream.is_ok(), version >= 130_500, "version {version}");
    if version < 130_500 {
        use std::ptr::null_mut;
        // SAFETY: the symbol is missing, so nothing is called.
        let missing = unsafe {
            api.cublasLtMatmulAlgoGetHeuristicForStream(
                null_mut(),
                null_mut(),
                null_mut(),
                null_mut(),
                null_mut(),
                null_mut(),
                null_mut(),
                0,
                null_mut(),
                null_mut(),
                null_mut(),
            )
        };
        assert!(missing.is_err());
    }
}
