// Made by build.rs with feature `bindgen` from cublasLt.h; do not edit: scripts/bindings.sh makes it again.
#[repr(C)]
#[derive(Debug)]
pub struct CUstream_st {
    _unused: [u8; 0],
}
pub type cudaStream_t = *mut CUstream_st;
impl cudaDataType_t {
    pub const CUDA_R_16F: cudaDataType_t = cudaDataType_t(2);
    pub const CUDA_C_16F: cudaDataType_t = cudaDataType_t(6);
    pub const CUDA_R_16BF: cudaDataType_t = cudaDataType_t(14);
    pub const CUDA_C_16BF: cudaDataType_t = cudaDataType_t(15);
    pub const CUDA_R_32F: cudaDataType_t = cudaDataType_t(0);
    pub const CUDA_C_32F: cudaDataType_t = cudaDataType_t(4);
    pub const CUDA_R_64F: cudaDataType_t = cudaDataType_t(1);
    pub const CUDA_C_64F: cudaDataType_t = cudaDataType_t(5);
    pub const CUDA_R_4I: cudaDataType_t = cudaDataType_t(16);
    pub const CUDA_C_4I: cudaDataType_t = cudaDataType_t(17);
    pub const CUDA_R_4U: cudaDataType_t = cudaDataType_t(18);
    pub const CUDA_C_4U: cudaDataType_t = cudaDataType_t(19);
    pub const CUDA_R_8I: cudaDataType_t = cudaDataType_t(3);
    pub const CUDA_C_8I: cudaDataType_t = cudaDataType_t(7);
    pub const CUDA_R_8U: cudaDataType_t = cudaDataType_t(8);
    pub const CUDA_C_8U: cudaDataType_t = cudaDataType_t(9);
    pub const CUDA_R_16I: cudaDataType_t = cudaDataType_t(20);
    pub const CUDA_C_16I: cudaDataType_t = cudaDataType_t(21);
    pub const CUDA_R_16U: cudaDataType_t = cudaDataType_t(22);
    pub const CUDA_C_16U: cudaDataType_t = cudaDataType_t(23);
    pub const CUDA_R_32I: cudaDataType_t = cudaDataType_t(10);
    pub const CUDA_C_32I: cudaDataType_t = cudaDataType_t(11);
    pub const CUDA_R_32U: cudaDataType_t = cudaDataType_t(12);
    pub const CUDA_C_32U: cudaDataType_t = cudaDataType_t(13);
    pub const CUDA_R_64I: cudaDataType_t = cudaDataType_t(24);
    pub const CUDA_C_64I: cudaDataType_t = cudaDataType_t(25);
    pub const CUDA_R_64U: cudaDataType_t = cudaDataType_t(26);
    pub const CUDA_C_64U: cudaDataType_t = cudaDataType_t(27);
    pub const CUDA_R_8F_E4M3: cudaDataType_t = cudaDataType_t(28);
    pub const CUDA_R_8F_UE4M3: cudaDataType_t = cudaDataType_t(28);
    pub const CUDA_R_8F_E5M2: cudaDataType_t = cudaDataType_t(29);
    pub const CUDA_R_8F_UE8M0: cudaDataType_t = cudaDataType_t(30);
    pub const CUDA_R_6F_E2M3: cudaDataType_t = cudaDataType_t(31);
    pub const CUDA_R_6F_E3M2: cudaDataType_t = cudaDataType_t(32);
    pub const CUDA_R_4F_E2M1: cudaDataType_t = cudaDataType_t(33);
    pub const CUDA_R_8F_UE5M3: cudaDataType_t = cudaDataType_t(34);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cudaDataType_t(pub ::std::os::raw::c_uint);
pub use self::cudaDataType_t as cudaDataType;
impl libraryPropertyType_t {
    pub const MAJOR_VERSION: libraryPropertyType_t = libraryPropertyType_t(0);
    pub const MINOR_VERSION: libraryPropertyType_t = libraryPropertyType_t(1);
    pub const PATCH_LEVEL: libraryPropertyType_t = libraryPropertyType_t(2);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct libraryPropertyType_t(pub ::std::os::raw::c_uint);
pub use self::libraryPropertyType_t as libraryPropertyType;
impl cublasStatus_t {
    pub const CUBLAS_STATUS_SUCCESS: cublasStatus_t = cublasStatus_t(0);
    pub const CUBLAS_STATUS_NOT_INITIALIZED: cublasStatus_t = cublasStatus_t(1);
    pub const CUBLAS_STATUS_ALLOC_FAILED: cublasStatus_t = cublasStatus_t(3);
    pub const CUBLAS_STATUS_INVALID_VALUE: cublasStatus_t = cublasStatus_t(7);
    pub const CUBLAS_STATUS_ARCH_MISMATCH: cublasStatus_t = cublasStatus_t(8);
    pub const CUBLAS_STATUS_MAPPING_ERROR: cublasStatus_t = cublasStatus_t(11);
    pub const CUBLAS_STATUS_EXECUTION_FAILED: cublasStatus_t = cublasStatus_t(13);
    pub const CUBLAS_STATUS_INTERNAL_ERROR: cublasStatus_t = cublasStatus_t(14);
    pub const CUBLAS_STATUS_NOT_SUPPORTED: cublasStatus_t = cublasStatus_t(15);
    pub const CUBLAS_STATUS_LICENSE_ERROR: cublasStatus_t = cublasStatus_t(16);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cublasStatus_t(pub ::std::os::raw::c_uint);
impl cublasComputeType_t {
    pub const CUBLAS_COMPUTE_16F: cublasComputeType_t = cublasComputeType_t(64);
    pub const CUBLAS_COMPUTE_16F_PEDANTIC: cublasComputeType_t = cublasComputeType_t(65);
    pub const CUBLAS_COMPUTE_32F: cublasComputeType_t = cublasComputeType_t(68);
    pub const CUBLAS_COMPUTE_32F_PEDANTIC: cublasComputeType_t = cublasComputeType_t(69);
    pub const CUBLAS_COMPUTE_32F_FAST_16F: cublasComputeType_t = cublasComputeType_t(74);
    pub const CUBLAS_COMPUTE_32F_FAST_16BF: cublasComputeType_t = cublasComputeType_t(
        75,
    );
    pub const CUBLAS_COMPUTE_32F_FAST_TF32: cublasComputeType_t = cublasComputeType_t(
        77,
    );
    pub const CUBLAS_COMPUTE_32F_EMULATED_16BFX9: cublasComputeType_t = cublasComputeType_t(
        78,
    );
    pub const CUBLAS_COMPUTE_64F: cublasComputeType_t = cublasComputeType_t(70);
    pub const CUBLAS_COMPUTE_64F_PEDANTIC: cublasComputeType_t = cublasComputeType_t(71);
    pub const CUBLAS_COMPUTE_64F_EMULATED_FIXEDPOINT: cublasComputeType_t = cublasComputeType_t(
        79,
    );
    pub const CUBLAS_COMPUTE_32I: cublasComputeType_t = cublasComputeType_t(72);
    pub const CUBLAS_COMPUTE_32I_PEDANTIC: cublasComputeType_t = cublasComputeType_t(73);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cublasComputeType_t(pub ::std::os::raw::c_uint);
#[repr(C)]
#[derive(Debug)]
pub struct cublasLtContext {
    _unused: [u8; 0],
}
pub type cublasLtHandle_t = *mut cublasLtContext;
#[repr(C)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cublasLtMatrixLayoutOpaque_t {
    pub data: [u64; 14usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of cublasLtMatrixLayoutOpaque_t",
    ][::std::mem::size_of::<cublasLtMatrixLayoutOpaque_t>() - 112usize];
    [
        "Alignment of cublasLtMatrixLayoutOpaque_t",
    ][::std::mem::align_of::<cublasLtMatrixLayoutOpaque_t>() - 8usize];
    [
        "Offset of field: cublasLtMatrixLayoutOpaque_t::data",
    ][::std::mem::offset_of!(cublasLtMatrixLayoutOpaque_t, data) - 0usize];
};
pub type cublasLtMatrixLayout_t = *mut cublasLtMatrixLayoutOpaque_t;
#[repr(C)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cublasLtMatmulAlgo_t {
    pub data: [u64; 8usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of cublasLtMatmulAlgo_t",
    ][::std::mem::size_of::<cublasLtMatmulAlgo_t>() - 64usize];
    [
        "Alignment of cublasLtMatmulAlgo_t",
    ][::std::mem::align_of::<cublasLtMatmulAlgo_t>() - 8usize];
    [
        "Offset of field: cublasLtMatmulAlgo_t::data",
    ][::std::mem::offset_of!(cublasLtMatmulAlgo_t, data) - 0usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cublasLtMatmulDescOpaque_t {
    pub data: [u64; 32usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of cublasLtMatmulDescOpaque_t",
    ][::std::mem::size_of::<cublasLtMatmulDescOpaque_t>() - 256usize];
    [
        "Alignment of cublasLtMatmulDescOpaque_t",
    ][::std::mem::align_of::<cublasLtMatmulDescOpaque_t>() - 8usize];
    [
        "Offset of field: cublasLtMatmulDescOpaque_t::data",
    ][::std::mem::offset_of!(cublasLtMatmulDescOpaque_t, data) - 0usize];
};
pub type cublasLtMatmulDesc_t = *mut cublasLtMatmulDescOpaque_t;
#[repr(C)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cublasLtMatrixTransformDescOpaque_t {
    pub data: [u64; 8usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of cublasLtMatrixTransformDescOpaque_t",
    ][::std::mem::size_of::<cublasLtMatrixTransformDescOpaque_t>() - 64usize];
    [
        "Alignment of cublasLtMatrixTransformDescOpaque_t",
    ][::std::mem::align_of::<cublasLtMatrixTransformDescOpaque_t>() - 8usize];
    [
        "Offset of field: cublasLtMatrixTransformDescOpaque_t::data",
    ][::std::mem::offset_of!(cublasLtMatrixTransformDescOpaque_t, data) - 0usize];
};
pub type cublasLtMatrixTransformDesc_t = *mut cublasLtMatrixTransformDescOpaque_t;
#[repr(C)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cublasLtMatmulPreferenceOpaque_t {
    pub data: [u64; 12usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of cublasLtMatmulPreferenceOpaque_t",
    ][::std::mem::size_of::<cublasLtMatmulPreferenceOpaque_t>() - 96usize];
    [
        "Alignment of cublasLtMatmulPreferenceOpaque_t",
    ][::std::mem::align_of::<cublasLtMatmulPreferenceOpaque_t>() - 8usize];
    [
        "Offset of field: cublasLtMatmulPreferenceOpaque_t::data",
    ][::std::mem::offset_of!(cublasLtMatmulPreferenceOpaque_t, data) - 0usize];
};
pub type cublasLtMatmulPreference_t = *mut cublasLtMatmulPreferenceOpaque_t;
#[repr(C)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cublasLtEmulationDescOpaque_t {
    pub data: [u64; 8usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of cublasLtEmulationDescOpaque_t",
    ][::std::mem::size_of::<cublasLtEmulationDescOpaque_t>() - 64usize];
    [
        "Alignment of cublasLtEmulationDescOpaque_t",
    ][::std::mem::align_of::<cublasLtEmulationDescOpaque_t>() - 8usize];
    [
        "Offset of field: cublasLtEmulationDescOpaque_t::data",
    ][::std::mem::offset_of!(cublasLtEmulationDescOpaque_t, data) - 0usize];
};
pub type cublasLtEmulationDesc_t = *mut cublasLtEmulationDescOpaque_t;
impl cublasLtMatmulTile_t {
    pub const CUBLASLT_MATMUL_TILE_UNDEFINED: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        0,
    );
    pub const CUBLASLT_MATMUL_TILE_8x8: cublasLtMatmulTile_t = cublasLtMatmulTile_t(1);
    pub const CUBLASLT_MATMUL_TILE_8x16: cublasLtMatmulTile_t = cublasLtMatmulTile_t(2);
    pub const CUBLASLT_MATMUL_TILE_16x8: cublasLtMatmulTile_t = cublasLtMatmulTile_t(3);
    pub const CUBLASLT_MATMUL_TILE_8x32: cublasLtMatmulTile_t = cublasLtMatmulTile_t(4);
    pub const CUBLASLT_MATMUL_TILE_16x16: cublasLtMatmulTile_t = cublasLtMatmulTile_t(5);
    pub const CUBLASLT_MATMUL_TILE_32x8: cublasLtMatmulTile_t = cublasLtMatmulTile_t(6);
    pub const CUBLASLT_MATMUL_TILE_8x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(7);
    pub const CUBLASLT_MATMUL_TILE_16x32: cublasLtMatmulTile_t = cublasLtMatmulTile_t(8);
    pub const CUBLASLT_MATMUL_TILE_32x16: cublasLtMatmulTile_t = cublasLtMatmulTile_t(9);
    pub const CUBLASLT_MATMUL_TILE_64x8: cublasLtMatmulTile_t = cublasLtMatmulTile_t(10);
    pub const CUBLASLT_MATMUL_TILE_32x32: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        11,
    );
    pub const CUBLASLT_MATMUL_TILE_32x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        12,
    );
    pub const CUBLASLT_MATMUL_TILE_64x32: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        13,
    );
    pub const CUBLASLT_MATMUL_TILE_32x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        14,
    );
    pub const CUBLASLT_MATMUL_TILE_64x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        15,
    );
    pub const CUBLASLT_MATMUL_TILE_128x32: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        16,
    );
    pub const CUBLASLT_MATMUL_TILE_64x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        17,
    );
    pub const CUBLASLT_MATMUL_TILE_128x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        18,
    );
    pub const CUBLASLT_MATMUL_TILE_64x256: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        19,
    );
    pub const CUBLASLT_MATMUL_TILE_128x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        20,
    );
    pub const CUBLASLT_MATMUL_TILE_256x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        21,
    );
    pub const CUBLASLT_MATMUL_TILE_64x512: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        22,
    );
    pub const CUBLASLT_MATMUL_TILE_128x256: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        23,
    );
    pub const CUBLASLT_MATMUL_TILE_256x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        24,
    );
    pub const CUBLASLT_MATMUL_TILE_512x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        25,
    );
    pub const CUBLASLT_MATMUL_TILE_64x96: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        26,
    );
    pub const CUBLASLT_MATMUL_TILE_96x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        27,
    );
    pub const CUBLASLT_MATMUL_TILE_96x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        28,
    );
    pub const CUBLASLT_MATMUL_TILE_128x160: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        29,
    );
    pub const CUBLASLT_MATMUL_TILE_160x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        30,
    );
    pub const CUBLASLT_MATMUL_TILE_192x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        31,
    );
    pub const CUBLASLT_MATMUL_TILE_128x192: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        32,
    );
    pub const CUBLASLT_MATMUL_TILE_128x96: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        33,
    );
    pub const CUBLASLT_MATMUL_TILE_32x256: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        34,
    );
    pub const CUBLASLT_MATMUL_TILE_256x32: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        35,
    );
    pub const CUBLASLT_MATMUL_TILE_8x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        36,
    );
    pub const CUBLASLT_MATMUL_TILE_8x192: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        37,
    );
    pub const CUBLASLT_MATMUL_TILE_8x256: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        38,
    );
    pub const CUBLASLT_MATMUL_TILE_8x320: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        39,
    );
    pub const CUBLASLT_MATMUL_TILE_8x384: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        40,
    );
    pub const CUBLASLT_MATMUL_TILE_8x448: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        41,
    );
    pub const CUBLASLT_MATMUL_TILE_8x512: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        42,
    );
    pub const CUBLASLT_MATMUL_TILE_8x576: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        43,
    );
    pub const CUBLASLT_MATMUL_TILE_8x640: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        44,
    );
    pub const CUBLASLT_MATMUL_TILE_8x704: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        45,
    );
    pub const CUBLASLT_MATMUL_TILE_8x768: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        46,
    );
    pub const CUBLASLT_MATMUL_TILE_16x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        47,
    );
    pub const CUBLASLT_MATMUL_TILE_16x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        48,
    );
    pub const CUBLASLT_MATMUL_TILE_16x192: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        49,
    );
    pub const CUBLASLT_MATMUL_TILE_16x256: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        50,
    );
    pub const CUBLASLT_MATMUL_TILE_16x320: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        51,
    );
    pub const CUBLASLT_MATMUL_TILE_16x384: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        52,
    );
    pub const CUBLASLT_MATMUL_TILE_16x448: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        53,
    );
    pub const CUBLASLT_MATMUL_TILE_16x512: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        54,
    );
    pub const CUBLASLT_MATMUL_TILE_16x576: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        55,
    );
    pub const CUBLASLT_MATMUL_TILE_16x640: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        56,
    );
    pub const CUBLASLT_MATMUL_TILE_16x704: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        57,
    );
    pub const CUBLASLT_MATMUL_TILE_16x768: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        58,
    );
    pub const CUBLASLT_MATMUL_TILE_24x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        59,
    );
    pub const CUBLASLT_MATMUL_TILE_24x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        60,
    );
    pub const CUBLASLT_MATMUL_TILE_24x192: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        61,
    );
    pub const CUBLASLT_MATMUL_TILE_24x256: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        62,
    );
    pub const CUBLASLT_MATMUL_TILE_24x320: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        63,
    );
    pub const CUBLASLT_MATMUL_TILE_24x384: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        64,
    );
    pub const CUBLASLT_MATMUL_TILE_24x448: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        65,
    );
    pub const CUBLASLT_MATMUL_TILE_24x512: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        66,
    );
    pub const CUBLASLT_MATMUL_TILE_24x576: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        67,
    );
    pub const CUBLASLT_MATMUL_TILE_24x640: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        68,
    );
    pub const CUBLASLT_MATMUL_TILE_24x704: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        69,
    );
    pub const CUBLASLT_MATMUL_TILE_24x768: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        70,
    );
    pub const CUBLASLT_MATMUL_TILE_32x192: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        71,
    );
    pub const CUBLASLT_MATMUL_TILE_32x320: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        72,
    );
    pub const CUBLASLT_MATMUL_TILE_32x384: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        73,
    );
    pub const CUBLASLT_MATMUL_TILE_32x448: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        74,
    );
    pub const CUBLASLT_MATMUL_TILE_32x512: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        75,
    );
    pub const CUBLASLT_MATMUL_TILE_32x576: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        76,
    );
    pub const CUBLASLT_MATMUL_TILE_32x640: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        77,
    );
    pub const CUBLASLT_MATMUL_TILE_32x704: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        78,
    );
    pub const CUBLASLT_MATMUL_TILE_32x768: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        79,
    );
    pub const CUBLASLT_MATMUL_TILE_40x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        80,
    );
    pub const CUBLASLT_MATMUL_TILE_40x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        81,
    );
    pub const CUBLASLT_MATMUL_TILE_40x192: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        82,
    );
    pub const CUBLASLT_MATMUL_TILE_40x256: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        83,
    );
    pub const CUBLASLT_MATMUL_TILE_40x320: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        84,
    );
    pub const CUBLASLT_MATMUL_TILE_40x384: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        85,
    );
    pub const CUBLASLT_MATMUL_TILE_40x448: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        86,
    );
    pub const CUBLASLT_MATMUL_TILE_40x512: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        87,
    );
    pub const CUBLASLT_MATMUL_TILE_40x576: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        88,
    );
    pub const CUBLASLT_MATMUL_TILE_40x640: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        89,
    );
    pub const CUBLASLT_MATMUL_TILE_40x704: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        90,
    );
    pub const CUBLASLT_MATMUL_TILE_40x768: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        91,
    );
    pub const CUBLASLT_MATMUL_TILE_48x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        92,
    );
    pub const CUBLASLT_MATMUL_TILE_48x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        93,
    );
    pub const CUBLASLT_MATMUL_TILE_48x192: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        94,
    );
    pub const CUBLASLT_MATMUL_TILE_48x256: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        95,
    );
    pub const CUBLASLT_MATMUL_TILE_48x320: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        96,
    );
    pub const CUBLASLT_MATMUL_TILE_48x384: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        97,
    );
    pub const CUBLASLT_MATMUL_TILE_48x448: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        98,
    );
    pub const CUBLASLT_MATMUL_TILE_48x512: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        99,
    );
    pub const CUBLASLT_MATMUL_TILE_48x576: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        100,
    );
    pub const CUBLASLT_MATMUL_TILE_48x640: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        101,
    );
    pub const CUBLASLT_MATMUL_TILE_48x704: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        102,
    );
    pub const CUBLASLT_MATMUL_TILE_48x768: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        103,
    );
    pub const CUBLASLT_MATMUL_TILE_56x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        104,
    );
    pub const CUBLASLT_MATMUL_TILE_56x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        105,
    );
    pub const CUBLASLT_MATMUL_TILE_56x192: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        106,
    );
    pub const CUBLASLT_MATMUL_TILE_56x256: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        107,
    );
    pub const CUBLASLT_MATMUL_TILE_56x320: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        108,
    );
    pub const CUBLASLT_MATMUL_TILE_56x384: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        109,
    );
    pub const CUBLASLT_MATMUL_TILE_56x448: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        110,
    );
    pub const CUBLASLT_MATMUL_TILE_56x512: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        111,
    );
    pub const CUBLASLT_MATMUL_TILE_56x576: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        112,
    );
    pub const CUBLASLT_MATMUL_TILE_56x640: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        113,
    );
    pub const CUBLASLT_MATMUL_TILE_56x704: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        114,
    );
    pub const CUBLASLT_MATMUL_TILE_56x768: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        115,
    );
    pub const CUBLASLT_MATMUL_TILE_64x192: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        116,
    );
    pub const CUBLASLT_MATMUL_TILE_64x320: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        117,
    );
    pub const CUBLASLT_MATMUL_TILE_64x384: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        118,
    );
    pub const CUBLASLT_MATMUL_TILE_64x448: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        119,
    );
    pub const CUBLASLT_MATMUL_TILE_64x576: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        120,
    );
    pub const CUBLASLT_MATMUL_TILE_64x640: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        121,
    );
    pub const CUBLASLT_MATMUL_TILE_64x704: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        122,
    );
    pub const CUBLASLT_MATMUL_TILE_64x768: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        123,
    );
    pub const CUBLASLT_MATMUL_TILE_72x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        124,
    );
    pub const CUBLASLT_MATMUL_TILE_72x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        125,
    );
    pub const CUBLASLT_MATMUL_TILE_72x192: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        126,
    );
    pub const CUBLASLT_MATMUL_TILE_72x256: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        127,
    );
    pub const CUBLASLT_MATMUL_TILE_72x320: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        128,
    );
    pub const CUBLASLT_MATMUL_TILE_72x384: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        129,
    );
    pub const CUBLASLT_MATMUL_TILE_72x448: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        130,
    );
    pub const CUBLASLT_MATMUL_TILE_72x512: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        131,
    );
    pub const CUBLASLT_MATMUL_TILE_72x576: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        132,
    );
    pub const CUBLASLT_MATMUL_TILE_72x640: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        133,
    );
    pub const CUBLASLT_MATMUL_TILE_80x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        134,
    );
    pub const CUBLASLT_MATMUL_TILE_80x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        135,
    );
    pub const CUBLASLT_MATMUL_TILE_80x192: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        136,
    );
    pub const CUBLASLT_MATMUL_TILE_80x256: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        137,
    );
    pub const CUBLASLT_MATMUL_TILE_80x320: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        138,
    );
    pub const CUBLASLT_MATMUL_TILE_80x384: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        139,
    );
    pub const CUBLASLT_MATMUL_TILE_80x448: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        140,
    );
    pub const CUBLASLT_MATMUL_TILE_80x512: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        141,
    );
    pub const CUBLASLT_MATMUL_TILE_80x576: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        142,
    );
    pub const CUBLASLT_MATMUL_TILE_88x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        143,
    );
    pub const CUBLASLT_MATMUL_TILE_88x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        144,
    );
    pub const CUBLASLT_MATMUL_TILE_88x192: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        145,
    );
    pub const CUBLASLT_MATMUL_TILE_88x256: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        146,
    );
    pub const CUBLASLT_MATMUL_TILE_88x320: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        147,
    );
    pub const CUBLASLT_MATMUL_TILE_88x384: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        148,
    );
    pub const CUBLASLT_MATMUL_TILE_88x448: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        149,
    );
    pub const CUBLASLT_MATMUL_TILE_88x512: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        150,
    );
    pub const CUBLASLT_MATMUL_TILE_96x192: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        151,
    );
    pub const CUBLASLT_MATMUL_TILE_96x256: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        152,
    );
    pub const CUBLASLT_MATMUL_TILE_96x320: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        153,
    );
    pub const CUBLASLT_MATMUL_TILE_96x384: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        154,
    );
    pub const CUBLASLT_MATMUL_TILE_96x448: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        155,
    );
    pub const CUBLASLT_MATMUL_TILE_96x512: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        156,
    );
    pub const CUBLASLT_MATMUL_TILE_104x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        157,
    );
    pub const CUBLASLT_MATMUL_TILE_104x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        158,
    );
    pub const CUBLASLT_MATMUL_TILE_104x192: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        159,
    );
    pub const CUBLASLT_MATMUL_TILE_104x256: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        160,
    );
    pub const CUBLASLT_MATMUL_TILE_104x320: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        161,
    );
    pub const CUBLASLT_MATMUL_TILE_104x384: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        162,
    );
    pub const CUBLASLT_MATMUL_TILE_104x448: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        163,
    );
    pub const CUBLASLT_MATMUL_TILE_112x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        164,
    );
    pub const CUBLASLT_MATMUL_TILE_112x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        165,
    );
    pub const CUBLASLT_MATMUL_TILE_112x192: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        166,
    );
    pub const CUBLASLT_MATMUL_TILE_112x256: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        167,
    );
    pub const CUBLASLT_MATMUL_TILE_112x320: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        168,
    );
    pub const CUBLASLT_MATMUL_TILE_112x384: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        169,
    );
    pub const CUBLASLT_MATMUL_TILE_120x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        170,
    );
    pub const CUBLASLT_MATMUL_TILE_120x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        171,
    );
    pub const CUBLASLT_MATMUL_TILE_120x192: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        172,
    );
    pub const CUBLASLT_MATMUL_TILE_120x256: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        173,
    );
    pub const CUBLASLT_MATMUL_TILE_120x320: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        174,
    );
    pub const CUBLASLT_MATMUL_TILE_120x384: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        175,
    );
    pub const CUBLASLT_MATMUL_TILE_128x320: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        176,
    );
    pub const CUBLASLT_MATMUL_TILE_128x384: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        177,
    );
    pub const CUBLASLT_MATMUL_TILE_136x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        178,
    );
    pub const CUBLASLT_MATMUL_TILE_136x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        179,
    );
    pub const CUBLASLT_MATMUL_TILE_136x192: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        180,
    );
    pub const CUBLASLT_MATMUL_TILE_136x256: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        181,
    );
    pub const CUBLASLT_MATMUL_TILE_136x320: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        182,
    );
    pub const CUBLASLT_MATMUL_TILE_144x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        183,
    );
    pub const CUBLASLT_MATMUL_TILE_144x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        184,
    );
    pub const CUBLASLT_MATMUL_TILE_144x192: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        185,
    );
    pub const CUBLASLT_MATMUL_TILE_144x256: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        186,
    );
    pub const CUBLASLT_MATMUL_TILE_144x320: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        187,
    );
    pub const CUBLASLT_MATMUL_TILE_152x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        188,
    );
    pub const CUBLASLT_MATMUL_TILE_152x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        189,
    );
    pub const CUBLASLT_MATMUL_TILE_152x192: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        190,
    );
    pub const CUBLASLT_MATMUL_TILE_152x256: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        191,
    );
    pub const CUBLASLT_MATMUL_TILE_152x320: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        192,
    );
    pub const CUBLASLT_MATMUL_TILE_160x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        193,
    );
    pub const CUBLASLT_MATMUL_TILE_160x192: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        194,
    );
    pub const CUBLASLT_MATMUL_TILE_160x256: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        195,
    );
    pub const CUBLASLT_MATMUL_TILE_168x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        196,
    );
    pub const CUBLASLT_MATMUL_TILE_168x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        197,
    );
    pub const CUBLASLT_MATMUL_TILE_168x192: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        198,
    );
    pub const CUBLASLT_MATMUL_TILE_168x256: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        199,
    );
    pub const CUBLASLT_MATMUL_TILE_176x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        200,
    );
    pub const CUBLASLT_MATMUL_TILE_176x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        201,
    );
    pub const CUBLASLT_MATMUL_TILE_176x192: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        202,
    );
    pub const CUBLASLT_MATMUL_TILE_176x256: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        203,
    );
    pub const CUBLASLT_MATMUL_TILE_184x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        204,
    );
    pub const CUBLASLT_MATMUL_TILE_184x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        205,
    );
    pub const CUBLASLT_MATMUL_TILE_184x192: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        206,
    );
    pub const CUBLASLT_MATMUL_TILE_184x256: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        207,
    );
    pub const CUBLASLT_MATMUL_TILE_192x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        208,
    );
    pub const CUBLASLT_MATMUL_TILE_192x192: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        209,
    );
    pub const CUBLASLT_MATMUL_TILE_192x256: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        210,
    );
    pub const CUBLASLT_MATMUL_TILE_200x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        211,
    );
    pub const CUBLASLT_MATMUL_TILE_200x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        212,
    );
    pub const CUBLASLT_MATMUL_TILE_200x192: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        213,
    );
    pub const CUBLASLT_MATMUL_TILE_208x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        214,
    );
    pub const CUBLASLT_MATMUL_TILE_208x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        215,
    );
    pub const CUBLASLT_MATMUL_TILE_208x192: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        216,
    );
    pub const CUBLASLT_MATMUL_TILE_216x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        217,
    );
    pub const CUBLASLT_MATMUL_TILE_216x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        218,
    );
    pub const CUBLASLT_MATMUL_TILE_216x192: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        219,
    );
    pub const CUBLASLT_MATMUL_TILE_224x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        220,
    );
    pub const CUBLASLT_MATMUL_TILE_224x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        221,
    );
    pub const CUBLASLT_MATMUL_TILE_224x192: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        222,
    );
    pub const CUBLASLT_MATMUL_TILE_232x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        223,
    );
    pub const CUBLASLT_MATMUL_TILE_232x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        224,
    );
    pub const CUBLASLT_MATMUL_TILE_232x192: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        225,
    );
    pub const CUBLASLT_MATMUL_TILE_240x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        226,
    );
    pub const CUBLASLT_MATMUL_TILE_240x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        227,
    );
    pub const CUBLASLT_MATMUL_TILE_240x192: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        228,
    );
    pub const CUBLASLT_MATMUL_TILE_248x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        229,
    );
    pub const CUBLASLT_MATMUL_TILE_248x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        230,
    );
    pub const CUBLASLT_MATMUL_TILE_248x192: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        231,
    );
    pub const CUBLASLT_MATMUL_TILE_256x192: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        232,
    );
    pub const CUBLASLT_MATMUL_TILE_264x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        233,
    );
    pub const CUBLASLT_MATMUL_TILE_264x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        234,
    );
    pub const CUBLASLT_MATMUL_TILE_272x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        235,
    );
    pub const CUBLASLT_MATMUL_TILE_272x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        236,
    );
    pub const CUBLASLT_MATMUL_TILE_280x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        237,
    );
    pub const CUBLASLT_MATMUL_TILE_280x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        238,
    );
    pub const CUBLASLT_MATMUL_TILE_288x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        239,
    );
    pub const CUBLASLT_MATMUL_TILE_288x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        240,
    );
    pub const CUBLASLT_MATMUL_TILE_296x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        241,
    );
    pub const CUBLASLT_MATMUL_TILE_296x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        242,
    );
    pub const CUBLASLT_MATMUL_TILE_304x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        243,
    );
    pub const CUBLASLT_MATMUL_TILE_304x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        244,
    );
    pub const CUBLASLT_MATMUL_TILE_312x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        245,
    );
    pub const CUBLASLT_MATMUL_TILE_312x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        246,
    );
    pub const CUBLASLT_MATMUL_TILE_320x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        247,
    );
    pub const CUBLASLT_MATMUL_TILE_320x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        248,
    );
    pub const CUBLASLT_MATMUL_TILE_328x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        249,
    );
    pub const CUBLASLT_MATMUL_TILE_328x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        250,
    );
    pub const CUBLASLT_MATMUL_TILE_336x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        251,
    );
    pub const CUBLASLT_MATMUL_TILE_336x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        252,
    );
    pub const CUBLASLT_MATMUL_TILE_344x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        253,
    );
    pub const CUBLASLT_MATMUL_TILE_344x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        254,
    );
    pub const CUBLASLT_MATMUL_TILE_352x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        255,
    );
    pub const CUBLASLT_MATMUL_TILE_352x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        256,
    );
    pub const CUBLASLT_MATMUL_TILE_360x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        257,
    );
    pub const CUBLASLT_MATMUL_TILE_360x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        258,
    );
    pub const CUBLASLT_MATMUL_TILE_368x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        259,
    );
    pub const CUBLASLT_MATMUL_TILE_368x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        260,
    );
    pub const CUBLASLT_MATMUL_TILE_376x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        261,
    );
    pub const CUBLASLT_MATMUL_TILE_376x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        262,
    );
    pub const CUBLASLT_MATMUL_TILE_384x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        263,
    );
    pub const CUBLASLT_MATMUL_TILE_384x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        264,
    );
    pub const CUBLASLT_MATMUL_TILE_392x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        265,
    );
    pub const CUBLASLT_MATMUL_TILE_400x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        266,
    );
    pub const CUBLASLT_MATMUL_TILE_408x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        267,
    );
    pub const CUBLASLT_MATMUL_TILE_416x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        268,
    );
    pub const CUBLASLT_MATMUL_TILE_424x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        269,
    );
    pub const CUBLASLT_MATMUL_TILE_432x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        270,
    );
    pub const CUBLASLT_MATMUL_TILE_440x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        271,
    );
    pub const CUBLASLT_MATMUL_TILE_448x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        272,
    );
    pub const CUBLASLT_MATMUL_TILE_456x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        273,
    );
    pub const CUBLASLT_MATMUL_TILE_464x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        274,
    );
    pub const CUBLASLT_MATMUL_TILE_472x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        275,
    );
    pub const CUBLASLT_MATMUL_TILE_480x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        276,
    );
    pub const CUBLASLT_MATMUL_TILE_488x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        277,
    );
    pub const CUBLASLT_MATMUL_TILE_496x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        278,
    );
    pub const CUBLASLT_MATMUL_TILE_504x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        279,
    );
    pub const CUBLASLT_MATMUL_TILE_520x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        280,
    );
    pub const CUBLASLT_MATMUL_TILE_528x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        281,
    );
    pub const CUBLASLT_MATMUL_TILE_536x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        282,
    );
    pub const CUBLASLT_MATMUL_TILE_544x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        283,
    );
    pub const CUBLASLT_MATMUL_TILE_552x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        284,
    );
    pub const CUBLASLT_MATMUL_TILE_560x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        285,
    );
    pub const CUBLASLT_MATMUL_TILE_568x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        286,
    );
    pub const CUBLASLT_MATMUL_TILE_576x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        287,
    );
    pub const CUBLASLT_MATMUL_TILE_584x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        288,
    );
    pub const CUBLASLT_MATMUL_TILE_592x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        289,
    );
    pub const CUBLASLT_MATMUL_TILE_600x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        290,
    );
    pub const CUBLASLT_MATMUL_TILE_608x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        291,
    );
    pub const CUBLASLT_MATMUL_TILE_616x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        292,
    );
    pub const CUBLASLT_MATMUL_TILE_624x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        293,
    );
    pub const CUBLASLT_MATMUL_TILE_632x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        294,
    );
    pub const CUBLASLT_MATMUL_TILE_640x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        295,
    );
    pub const CUBLASLT_MATMUL_TILE_648x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        296,
    );
    pub const CUBLASLT_MATMUL_TILE_656x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        297,
    );
    pub const CUBLASLT_MATMUL_TILE_664x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        298,
    );
    pub const CUBLASLT_MATMUL_TILE_672x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        299,
    );
    pub const CUBLASLT_MATMUL_TILE_680x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        300,
    );
    pub const CUBLASLT_MATMUL_TILE_688x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        301,
    );
    pub const CUBLASLT_MATMUL_TILE_696x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        302,
    );
    pub const CUBLASLT_MATMUL_TILE_704x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        303,
    );
    pub const CUBLASLT_MATMUL_TILE_712x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        304,
    );
    pub const CUBLASLT_MATMUL_TILE_720x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        305,
    );
    pub const CUBLASLT_MATMUL_TILE_728x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        306,
    );
    pub const CUBLASLT_MATMUL_TILE_736x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        307,
    );
    pub const CUBLASLT_MATMUL_TILE_744x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        308,
    );
    pub const CUBLASLT_MATMUL_TILE_752x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        309,
    );
    pub const CUBLASLT_MATMUL_TILE_760x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        310,
    );
    pub const CUBLASLT_MATMUL_TILE_768x64: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        311,
    );
    pub const CUBLASLT_MATMUL_TILE_64x16: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        312,
    );
    pub const CUBLASLT_MATMUL_TILE_64x24: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        313,
    );
    pub const CUBLASLT_MATMUL_TILE_64x40: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        314,
    );
    pub const CUBLASLT_MATMUL_TILE_64x48: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        315,
    );
    pub const CUBLASLT_MATMUL_TILE_64x56: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        316,
    );
    pub const CUBLASLT_MATMUL_TILE_64x72: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        317,
    );
    pub const CUBLASLT_MATMUL_TILE_64x80: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        318,
    );
    pub const CUBLASLT_MATMUL_TILE_64x88: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        319,
    );
    pub const CUBLASLT_MATMUL_TILE_64x104: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        320,
    );
    pub const CUBLASLT_MATMUL_TILE_64x112: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        321,
    );
    pub const CUBLASLT_MATMUL_TILE_64x120: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        322,
    );
    pub const CUBLASLT_MATMUL_TILE_64x136: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        323,
    );
    pub const CUBLASLT_MATMUL_TILE_64x144: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        324,
    );
    pub const CUBLASLT_MATMUL_TILE_64x152: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        325,
    );
    pub const CUBLASLT_MATMUL_TILE_64x160: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        326,
    );
    pub const CUBLASLT_MATMUL_TILE_64x168: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        327,
    );
    pub const CUBLASLT_MATMUL_TILE_64x176: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        328,
    );
    pub const CUBLASLT_MATMUL_TILE_64x184: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        329,
    );
    pub const CUBLASLT_MATMUL_TILE_64x200: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        330,
    );
    pub const CUBLASLT_MATMUL_TILE_64x208: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        331,
    );
    pub const CUBLASLT_MATMUL_TILE_64x216: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        332,
    );
    pub const CUBLASLT_MATMUL_TILE_64x224: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        333,
    );
    pub const CUBLASLT_MATMUL_TILE_64x232: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        334,
    );
    pub const CUBLASLT_MATMUL_TILE_64x240: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        335,
    );
    pub const CUBLASLT_MATMUL_TILE_64x248: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        336,
    );
    pub const CUBLASLT_MATMUL_TILE_64x264: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        337,
    );
    pub const CUBLASLT_MATMUL_TILE_64x272: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        338,
    );
    pub const CUBLASLT_MATMUL_TILE_64x280: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        339,
    );
    pub const CUBLASLT_MATMUL_TILE_64x288: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        340,
    );
    pub const CUBLASLT_MATMUL_TILE_64x296: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        341,
    );
    pub const CUBLASLT_MATMUL_TILE_64x304: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        342,
    );
    pub const CUBLASLT_MATMUL_TILE_64x312: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        343,
    );
    pub const CUBLASLT_MATMUL_TILE_64x328: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        344,
    );
    pub const CUBLASLT_MATMUL_TILE_64x336: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        345,
    );
    pub const CUBLASLT_MATMUL_TILE_64x344: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        346,
    );
    pub const CUBLASLT_MATMUL_TILE_64x352: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        347,
    );
    pub const CUBLASLT_MATMUL_TILE_64x360: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        348,
    );
    pub const CUBLASLT_MATMUL_TILE_64x368: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        349,
    );
    pub const CUBLASLT_MATMUL_TILE_64x376: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        350,
    );
    pub const CUBLASLT_MATMUL_TILE_64x392: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        351,
    );
    pub const CUBLASLT_MATMUL_TILE_64x400: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        352,
    );
    pub const CUBLASLT_MATMUL_TILE_64x408: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        353,
    );
    pub const CUBLASLT_MATMUL_TILE_64x416: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        354,
    );
    pub const CUBLASLT_MATMUL_TILE_64x424: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        355,
    );
    pub const CUBLASLT_MATMUL_TILE_64x432: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        356,
    );
    pub const CUBLASLT_MATMUL_TILE_64x440: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        357,
    );
    pub const CUBLASLT_MATMUL_TILE_64x456: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        358,
    );
    pub const CUBLASLT_MATMUL_TILE_64x464: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        359,
    );
    pub const CUBLASLT_MATMUL_TILE_64x472: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        360,
    );
    pub const CUBLASLT_MATMUL_TILE_64x480: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        361,
    );
    pub const CUBLASLT_MATMUL_TILE_64x488: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        362,
    );
    pub const CUBLASLT_MATMUL_TILE_64x496: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        363,
    );
    pub const CUBLASLT_MATMUL_TILE_64x504: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        364,
    );
    pub const CUBLASLT_MATMUL_TILE_64x520: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        365,
    );
    pub const CUBLASLT_MATMUL_TILE_64x528: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        366,
    );
    pub const CUBLASLT_MATMUL_TILE_64x536: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        367,
    );
    pub const CUBLASLT_MATMUL_TILE_64x544: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        368,
    );
    pub const CUBLASLT_MATMUL_TILE_64x552: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        369,
    );
    pub const CUBLASLT_MATMUL_TILE_64x560: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        370,
    );
    pub const CUBLASLT_MATMUL_TILE_64x568: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        371,
    );
    pub const CUBLASLT_MATMUL_TILE_64x584: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        372,
    );
    pub const CUBLASLT_MATMUL_TILE_64x592: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        373,
    );
    pub const CUBLASLT_MATMUL_TILE_64x600: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        374,
    );
    pub const CUBLASLT_MATMUL_TILE_64x608: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        375,
    );
    pub const CUBLASLT_MATMUL_TILE_64x616: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        376,
    );
    pub const CUBLASLT_MATMUL_TILE_64x624: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        377,
    );
    pub const CUBLASLT_MATMUL_TILE_64x632: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        378,
    );
    pub const CUBLASLT_MATMUL_TILE_64x648: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        379,
    );
    pub const CUBLASLT_MATMUL_TILE_64x656: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        380,
    );
    pub const CUBLASLT_MATMUL_TILE_64x664: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        381,
    );
    pub const CUBLASLT_MATMUL_TILE_64x672: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        382,
    );
    pub const CUBLASLT_MATMUL_TILE_64x680: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        383,
    );
    pub const CUBLASLT_MATMUL_TILE_64x688: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        384,
    );
    pub const CUBLASLT_MATMUL_TILE_64x696: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        385,
    );
    pub const CUBLASLT_MATMUL_TILE_64x712: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        386,
    );
    pub const CUBLASLT_MATMUL_TILE_64x720: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        387,
    );
    pub const CUBLASLT_MATMUL_TILE_64x728: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        388,
    );
    pub const CUBLASLT_MATMUL_TILE_64x736: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        389,
    );
    pub const CUBLASLT_MATMUL_TILE_64x744: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        390,
    );
    pub const CUBLASLT_MATMUL_TILE_64x752: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        391,
    );
    pub const CUBLASLT_MATMUL_TILE_64x760: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        392,
    );
    pub const CUBLASLT_MATMUL_TILE_128x8: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        393,
    );
    pub const CUBLASLT_MATMUL_TILE_128x16: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        394,
    );
    pub const CUBLASLT_MATMUL_TILE_128x24: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        395,
    );
    pub const CUBLASLT_MATMUL_TILE_128x40: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        396,
    );
    pub const CUBLASLT_MATMUL_TILE_128x48: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        397,
    );
    pub const CUBLASLT_MATMUL_TILE_128x56: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        398,
    );
    pub const CUBLASLT_MATMUL_TILE_128x72: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        399,
    );
    pub const CUBLASLT_MATMUL_TILE_128x80: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        400,
    );
    pub const CUBLASLT_MATMUL_TILE_128x88: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        401,
    );
    pub const CUBLASLT_MATMUL_TILE_128x104: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        402,
    );
    pub const CUBLASLT_MATMUL_TILE_128x112: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        403,
    );
    pub const CUBLASLT_MATMUL_TILE_128x120: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        404,
    );
    pub const CUBLASLT_MATMUL_TILE_128x136: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        405,
    );
    pub const CUBLASLT_MATMUL_TILE_128x144: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        406,
    );
    pub const CUBLASLT_MATMUL_TILE_128x152: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        407,
    );
    pub const CUBLASLT_MATMUL_TILE_128x168: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        408,
    );
    pub const CUBLASLT_MATMUL_TILE_128x176: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        409,
    );
    pub const CUBLASLT_MATMUL_TILE_128x184: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        410,
    );
    pub const CUBLASLT_MATMUL_TILE_128x200: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        411,
    );
    pub const CUBLASLT_MATMUL_TILE_128x208: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        412,
    );
    pub const CUBLASLT_MATMUL_TILE_128x216: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        413,
    );
    pub const CUBLASLT_MATMUL_TILE_128x224: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        414,
    );
    pub const CUBLASLT_MATMUL_TILE_128x232: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        415,
    );
    pub const CUBLASLT_MATMUL_TILE_128x240: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        416,
    );
    pub const CUBLASLT_MATMUL_TILE_128x248: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        417,
    );
    pub const CUBLASLT_MATMUL_TILE_128x264: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        418,
    );
    pub const CUBLASLT_MATMUL_TILE_128x272: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        419,
    );
    pub const CUBLASLT_MATMUL_TILE_128x280: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        420,
    );
    pub const CUBLASLT_MATMUL_TILE_128x288: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        421,
    );
    pub const CUBLASLT_MATMUL_TILE_128x296: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        422,
    );
    pub const CUBLASLT_MATMUL_TILE_128x304: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        423,
    );
    pub const CUBLASLT_MATMUL_TILE_128x312: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        424,
    );
    pub const CUBLASLT_MATMUL_TILE_128x328: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        425,
    );
    pub const CUBLASLT_MATMUL_TILE_128x336: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        426,
    );
    pub const CUBLASLT_MATMUL_TILE_128x344: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        427,
    );
    pub const CUBLASLT_MATMUL_TILE_128x352: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        428,
    );
    pub const CUBLASLT_MATMUL_TILE_128x360: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        429,
    );
    pub const CUBLASLT_MATMUL_TILE_128x368: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        430,
    );
    pub const CUBLASLT_MATMUL_TILE_128x376: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        431,
    );
    pub const CUBLASLT_MATMUL_TILE_128x392: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        432,
    );
    pub const CUBLASLT_MATMUL_TILE_128x400: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        433,
    );
    pub const CUBLASLT_MATMUL_TILE_128x408: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        434,
    );
    pub const CUBLASLT_MATMUL_TILE_128x416: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        435,
    );
    pub const CUBLASLT_MATMUL_TILE_128x424: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        436,
    );
    pub const CUBLASLT_MATMUL_TILE_128x432: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        437,
    );
    pub const CUBLASLT_MATMUL_TILE_128x440: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        438,
    );
    pub const CUBLASLT_MATMUL_TILE_128x448: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        439,
    );
    pub const CUBLASLT_MATMUL_TILE_128x456: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        440,
    );
    pub const CUBLASLT_MATMUL_TILE_128x464: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        441,
    );
    pub const CUBLASLT_MATMUL_TILE_128x472: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        442,
    );
    pub const CUBLASLT_MATMUL_TILE_128x480: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        443,
    );
    pub const CUBLASLT_MATMUL_TILE_128x488: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        444,
    );
    pub const CUBLASLT_MATMUL_TILE_128x496: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        445,
    );
    pub const CUBLASLT_MATMUL_TILE_128x504: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        446,
    );
    pub const CUBLASLT_MATMUL_TILE_128x512: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        447,
    );
    pub const CUBLASLT_MATMUL_TILE_192x8: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        448,
    );
    pub const CUBLASLT_MATMUL_TILE_192x16: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        449,
    );
    pub const CUBLASLT_MATMUL_TILE_192x24: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        450,
    );
    pub const CUBLASLT_MATMUL_TILE_192x32: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        451,
    );
    pub const CUBLASLT_MATMUL_TILE_192x40: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        452,
    );
    pub const CUBLASLT_MATMUL_TILE_192x48: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        453,
    );
    pub const CUBLASLT_MATMUL_TILE_192x56: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        454,
    );
    pub const CUBLASLT_MATMUL_TILE_192x72: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        455,
    );
    pub const CUBLASLT_MATMUL_TILE_192x80: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        456,
    );
    pub const CUBLASLT_MATMUL_TILE_192x88: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        457,
    );
    pub const CUBLASLT_MATMUL_TILE_192x96: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        458,
    );
    pub const CUBLASLT_MATMUL_TILE_192x104: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        459,
    );
    pub const CUBLASLT_MATMUL_TILE_192x112: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        460,
    );
    pub const CUBLASLT_MATMUL_TILE_192x120: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        461,
    );
    pub const CUBLASLT_MATMUL_TILE_192x136: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        462,
    );
    pub const CUBLASLT_MATMUL_TILE_192x144: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        463,
    );
    pub const CUBLASLT_MATMUL_TILE_192x152: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        464,
    );
    pub const CUBLASLT_MATMUL_TILE_192x160: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        465,
    );
    pub const CUBLASLT_MATMUL_TILE_192x168: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        466,
    );
    pub const CUBLASLT_MATMUL_TILE_192x176: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        467,
    );
    pub const CUBLASLT_MATMUL_TILE_192x184: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        468,
    );
    pub const CUBLASLT_MATMUL_TILE_192x200: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        469,
    );
    pub const CUBLASLT_MATMUL_TILE_192x208: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        470,
    );
    pub const CUBLASLT_MATMUL_TILE_192x216: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        471,
    );
    pub const CUBLASLT_MATMUL_TILE_192x224: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        472,
    );
    pub const CUBLASLT_MATMUL_TILE_192x232: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        473,
    );
    pub const CUBLASLT_MATMUL_TILE_192x240: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        474,
    );
    pub const CUBLASLT_MATMUL_TILE_192x248: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        475,
    );
    pub const CUBLASLT_MATMUL_TILE_192x264: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        476,
    );
    pub const CUBLASLT_MATMUL_TILE_192x272: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        477,
    );
    pub const CUBLASLT_MATMUL_TILE_192x280: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        478,
    );
    pub const CUBLASLT_MATMUL_TILE_192x288: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        479,
    );
    pub const CUBLASLT_MATMUL_TILE_192x296: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        480,
    );
    pub const CUBLASLT_MATMUL_TILE_192x304: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        481,
    );
    pub const CUBLASLT_MATMUL_TILE_192x312: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        482,
    );
    pub const CUBLASLT_MATMUL_TILE_192x320: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        483,
    );
    pub const CUBLASLT_MATMUL_TILE_192x328: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        484,
    );
    pub const CUBLASLT_MATMUL_TILE_192x336: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        485,
    );
    pub const CUBLASLT_MATMUL_TILE_256x8: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        486,
    );
    pub const CUBLASLT_MATMUL_TILE_256x16: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        487,
    );
    pub const CUBLASLT_MATMUL_TILE_256x24: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        488,
    );
    pub const CUBLASLT_MATMUL_TILE_256x40: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        489,
    );
    pub const CUBLASLT_MATMUL_TILE_256x48: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        490,
    );
    pub const CUBLASLT_MATMUL_TILE_256x56: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        491,
    );
    pub const CUBLASLT_MATMUL_TILE_256x72: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        492,
    );
    pub const CUBLASLT_MATMUL_TILE_256x80: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        493,
    );
    pub const CUBLASLT_MATMUL_TILE_256x88: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        494,
    );
    pub const CUBLASLT_MATMUL_TILE_256x96: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        495,
    );
    pub const CUBLASLT_MATMUL_TILE_256x104: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        496,
    );
    pub const CUBLASLT_MATMUL_TILE_256x112: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        497,
    );
    pub const CUBLASLT_MATMUL_TILE_256x120: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        498,
    );
    pub const CUBLASLT_MATMUL_TILE_256x136: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        499,
    );
    pub const CUBLASLT_MATMUL_TILE_256x144: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        500,
    );
    pub const CUBLASLT_MATMUL_TILE_256x152: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        501,
    );
    pub const CUBLASLT_MATMUL_TILE_256x160: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        502,
    );
    pub const CUBLASLT_MATMUL_TILE_256x168: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        503,
    );
    pub const CUBLASLT_MATMUL_TILE_256x176: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        504,
    );
    pub const CUBLASLT_MATMUL_TILE_256x184: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        505,
    );
    pub const CUBLASLT_MATMUL_TILE_256x200: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        506,
    );
    pub const CUBLASLT_MATMUL_TILE_256x208: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        507,
    );
    pub const CUBLASLT_MATMUL_TILE_256x216: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        508,
    );
    pub const CUBLASLT_MATMUL_TILE_256x224: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        509,
    );
    pub const CUBLASLT_MATMUL_TILE_256x232: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        510,
    );
    pub const CUBLASLT_MATMUL_TILE_256x240: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        511,
    );
    pub const CUBLASLT_MATMUL_TILE_256x248: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        512,
    );
    pub const CUBLASLT_MATMUL_TILE_256x256: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        513,
    );
    pub const CUBLASLT_MATMUL_TILE_320x8: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        514,
    );
    pub const CUBLASLT_MATMUL_TILE_320x16: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        515,
    );
    pub const CUBLASLT_MATMUL_TILE_320x24: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        516,
    );
    pub const CUBLASLT_MATMUL_TILE_320x32: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        517,
    );
    pub const CUBLASLT_MATMUL_TILE_320x40: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        518,
    );
    pub const CUBLASLT_MATMUL_TILE_320x48: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        519,
    );
    pub const CUBLASLT_MATMUL_TILE_320x56: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        520,
    );
    pub const CUBLASLT_MATMUL_TILE_320x72: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        521,
    );
    pub const CUBLASLT_MATMUL_TILE_320x80: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        522,
    );
    pub const CUBLASLT_MATMUL_TILE_320x88: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        523,
    );
    pub const CUBLASLT_MATMUL_TILE_320x96: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        524,
    );
    pub const CUBLASLT_MATMUL_TILE_320x104: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        525,
    );
    pub const CUBLASLT_MATMUL_TILE_320x112: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        526,
    );
    pub const CUBLASLT_MATMUL_TILE_320x120: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        527,
    );
    pub const CUBLASLT_MATMUL_TILE_320x136: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        528,
    );
    pub const CUBLASLT_MATMUL_TILE_320x144: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        529,
    );
    pub const CUBLASLT_MATMUL_TILE_320x152: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        530,
    );
    pub const CUBLASLT_MATMUL_TILE_320x160: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        531,
    );
    pub const CUBLASLT_MATMUL_TILE_320x168: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        532,
    );
    pub const CUBLASLT_MATMUL_TILE_320x176: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        533,
    );
    pub const CUBLASLT_MATMUL_TILE_320x184: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        534,
    );
    pub const CUBLASLT_MATMUL_TILE_320x192: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        535,
    );
    pub const CUBLASLT_MATMUL_TILE_320x200: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        536,
    );
    pub const CUBLASLT_MATMUL_TILE_384x8: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        537,
    );
    pub const CUBLASLT_MATMUL_TILE_384x16: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        538,
    );
    pub const CUBLASLT_MATMUL_TILE_384x24: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        539,
    );
    pub const CUBLASLT_MATMUL_TILE_384x32: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        540,
    );
    pub const CUBLASLT_MATMUL_TILE_384x40: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        541,
    );
    pub const CUBLASLT_MATMUL_TILE_384x48: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        542,
    );
    pub const CUBLASLT_MATMUL_TILE_384x56: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        543,
    );
    pub const CUBLASLT_MATMUL_TILE_384x72: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        544,
    );
    pub const CUBLASLT_MATMUL_TILE_384x80: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        545,
    );
    pub const CUBLASLT_MATMUL_TILE_384x88: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        546,
    );
    pub const CUBLASLT_MATMUL_TILE_384x96: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        547,
    );
    pub const CUBLASLT_MATMUL_TILE_384x104: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        548,
    );
    pub const CUBLASLT_MATMUL_TILE_384x112: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        549,
    );
    pub const CUBLASLT_MATMUL_TILE_384x120: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        550,
    );
    pub const CUBLASLT_MATMUL_TILE_384x136: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        551,
    );
    pub const CUBLASLT_MATMUL_TILE_384x144: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        552,
    );
    pub const CUBLASLT_MATMUL_TILE_384x152: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        553,
    );
    pub const CUBLASLT_MATMUL_TILE_384x160: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        554,
    );
    pub const CUBLASLT_MATMUL_TILE_384x168: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        555,
    );
    pub const CUBLASLT_MATMUL_TILE_448x8: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        556,
    );
    pub const CUBLASLT_MATMUL_TILE_448x16: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        557,
    );
    pub const CUBLASLT_MATMUL_TILE_448x24: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        558,
    );
    pub const CUBLASLT_MATMUL_TILE_448x32: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        559,
    );
    pub const CUBLASLT_MATMUL_TILE_448x40: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        560,
    );
    pub const CUBLASLT_MATMUL_TILE_448x48: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        561,
    );
    pub const CUBLASLT_MATMUL_TILE_448x56: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        562,
    );
    pub const CUBLASLT_MATMUL_TILE_448x72: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        563,
    );
    pub const CUBLASLT_MATMUL_TILE_448x80: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        564,
    );
    pub const CUBLASLT_MATMUL_TILE_448x88: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        565,
    );
    pub const CUBLASLT_MATMUL_TILE_448x96: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        566,
    );
    pub const CUBLASLT_MATMUL_TILE_448x104: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        567,
    );
    pub const CUBLASLT_MATMUL_TILE_448x112: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        568,
    );
    pub const CUBLASLT_MATMUL_TILE_448x120: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        569,
    );
    pub const CUBLASLT_MATMUL_TILE_448x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        570,
    );
    pub const CUBLASLT_MATMUL_TILE_448x136: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        571,
    );
    pub const CUBLASLT_MATMUL_TILE_448x144: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        572,
    );
    pub const CUBLASLT_MATMUL_TILE_512x8: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        573,
    );
    pub const CUBLASLT_MATMUL_TILE_512x16: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        574,
    );
    pub const CUBLASLT_MATMUL_TILE_512x24: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        575,
    );
    pub const CUBLASLT_MATMUL_TILE_512x32: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        576,
    );
    pub const CUBLASLT_MATMUL_TILE_512x40: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        577,
    );
    pub const CUBLASLT_MATMUL_TILE_512x48: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        578,
    );
    pub const CUBLASLT_MATMUL_TILE_512x56: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        579,
    );
    pub const CUBLASLT_MATMUL_TILE_512x72: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        580,
    );
    pub const CUBLASLT_MATMUL_TILE_512x80: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        581,
    );
    pub const CUBLASLT_MATMUL_TILE_512x88: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        582,
    );
    pub const CUBLASLT_MATMUL_TILE_512x96: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        583,
    );
    pub const CUBLASLT_MATMUL_TILE_512x104: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        584,
    );
    pub const CUBLASLT_MATMUL_TILE_512x112: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        585,
    );
    pub const CUBLASLT_MATMUL_TILE_512x120: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        586,
    );
    pub const CUBLASLT_MATMUL_TILE_512x128: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        587,
    );
    pub const CUBLASLT_MATMUL_TILE_576x8: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        588,
    );
    pub const CUBLASLT_MATMUL_TILE_576x16: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        589,
    );
    pub const CUBLASLT_MATMUL_TILE_576x24: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        590,
    );
    pub const CUBLASLT_MATMUL_TILE_576x32: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        591,
    );
    pub const CUBLASLT_MATMUL_TILE_576x40: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        592,
    );
    pub const CUBLASLT_MATMUL_TILE_576x48: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        593,
    );
    pub const CUBLASLT_MATMUL_TILE_576x56: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        594,
    );
    pub const CUBLASLT_MATMUL_TILE_576x72: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        595,
    );
    pub const CUBLASLT_MATMUL_TILE_576x80: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        596,
    );
    pub const CUBLASLT_MATMUL_TILE_576x88: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        597,
    );
    pub const CUBLASLT_MATMUL_TILE_576x96: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        598,
    );
    pub const CUBLASLT_MATMUL_TILE_576x104: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        599,
    );
    pub const CUBLASLT_MATMUL_TILE_576x112: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        600,
    );
    pub const CUBLASLT_MATMUL_TILE_640x8: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        601,
    );
    pub const CUBLASLT_MATMUL_TILE_640x16: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        602,
    );
    pub const CUBLASLT_MATMUL_TILE_640x24: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        603,
    );
    pub const CUBLASLT_MATMUL_TILE_640x32: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        604,
    );
    pub const CUBLASLT_MATMUL_TILE_640x40: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        605,
    );
    pub const CUBLASLT_MATMUL_TILE_640x48: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        606,
    );
    pub const CUBLASLT_MATMUL_TILE_640x56: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        607,
    );
    pub const CUBLASLT_MATMUL_TILE_640x72: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        608,
    );
    pub const CUBLASLT_MATMUL_TILE_640x80: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        609,
    );
    pub const CUBLASLT_MATMUL_TILE_640x88: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        610,
    );
    pub const CUBLASLT_MATMUL_TILE_640x96: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        611,
    );
    pub const CUBLASLT_MATMUL_TILE_704x8: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        612,
    );
    pub const CUBLASLT_MATMUL_TILE_704x16: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        613,
    );
    pub const CUBLASLT_MATMUL_TILE_704x24: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        614,
    );
    pub const CUBLASLT_MATMUL_TILE_704x32: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        615,
    );
    pub const CUBLASLT_MATMUL_TILE_704x40: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        616,
    );
    pub const CUBLASLT_MATMUL_TILE_704x48: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        617,
    );
    pub const CUBLASLT_MATMUL_TILE_704x56: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        618,
    );
    pub const CUBLASLT_MATMUL_TILE_704x72: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        619,
    );
    pub const CUBLASLT_MATMUL_TILE_704x80: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        620,
    );
    pub const CUBLASLT_MATMUL_TILE_704x88: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        621,
    );
    pub const CUBLASLT_MATMUL_TILE_768x8: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        622,
    );
    pub const CUBLASLT_MATMUL_TILE_768x16: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        623,
    );
    pub const CUBLASLT_MATMUL_TILE_768x24: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        624,
    );
    pub const CUBLASLT_MATMUL_TILE_768x32: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        625,
    );
    pub const CUBLASLT_MATMUL_TILE_768x40: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        626,
    );
    pub const CUBLASLT_MATMUL_TILE_768x48: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        627,
    );
    pub const CUBLASLT_MATMUL_TILE_768x56: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        628,
    );
    pub const CUBLASLT_MATMUL_TILE_768x72: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        629,
    );
    pub const CUBLASLT_MATMUL_TILE_768x80: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        630,
    );
    pub const CUBLASLT_MATMUL_TILE_256x512: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        631,
    );
    pub const CUBLASLT_MATMUL_TILE_256x1024: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        632,
    );
    pub const CUBLASLT_MATMUL_TILE_512x512: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        633,
    );
    pub const CUBLASLT_MATMUL_TILE_512x1024: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        634,
    );
    pub const CUBLASLT_MATMUL_TILE_4x1: cublasLtMatmulTile_t = cublasLtMatmulTile_t(635);
    pub const CUBLASLT_MATMUL_TILE_8x1: cublasLtMatmulTile_t = cublasLtMatmulTile_t(636);
    pub const CUBLASLT_MATMUL_TILE_16x1: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        637,
    );
    pub const CUBLASLT_MATMUL_TILE_24x1: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        638,
    );
    pub const CUBLASLT_MATMUL_TILE_32x1: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        639,
    );
    pub const CUBLASLT_MATMUL_TILE_40x1: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        640,
    );
    pub const CUBLASLT_MATMUL_TILE_48x1: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        641,
    );
    pub const CUBLASLT_MATMUL_TILE_64x1: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        642,
    );
    pub const CUBLASLT_MATMUL_TILE_128x1: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        643,
    );
    pub const CUBLASLT_MATMUL_TILE_192x1: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        644,
    );
    pub const CUBLASLT_MATMUL_TILE_256x1: cublasLtMatmulTile_t = cublasLtMatmulTile_t(
        645,
    );
    pub const CUBLASLT_MATMUL_TILE_END: cublasLtMatmulTile_t = cublasLtMatmulTile_t(646);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cublasLtMatmulTile_t(pub ::std::os::raw::c_uint);
impl cublasLtMatmulStages_t {
    pub const CUBLASLT_MATMUL_STAGES_UNDEFINED: cublasLtMatmulStages_t = cublasLtMatmulStages_t(
        0,
    );
    pub const CUBLASLT_MATMUL_STAGES_16x1: cublasLtMatmulStages_t = cublasLtMatmulStages_t(
        1,
    );
    pub const CUBLASLT_MATMUL_STAGES_16x2: cublasLtMatmulStages_t = cublasLtMatmulStages_t(
        2,
    );
    pub const CUBLASLT_MATMUL_STAGES_16x3: cublasLtMatmulStages_t = cublasLtMatmulStages_t(
        3,
    );
    pub const CUBLASLT_MATMUL_STAGES_16x4: cublasLtMatmulStages_t = cublasLtMatmulStages_t(
        4,
    );
    pub const CUBLASLT_MATMUL_STAGES_16x5: cublasLtMatmulStages_t = cublasLtMatmulStages_t(
        5,
    );
    pub const CUBLASLT_MATMUL_STAGES_16x6: cublasLtMatmulStages_t = cublasLtMatmulStages_t(
        6,
    );
    pub const CUBLASLT_MATMUL_STAGES_32x1: cublasLtMatmulStages_t = cublasLtMatmulStages_t(
        7,
    );
    pub const CUBLASLT_MATMUL_STAGES_32x2: cublasLtMatmulStages_t = cublasLtMatmulStages_t(
        8,
    );
    pub const CUBLASLT_MATMUL_STAGES_32x3: cublasLtMatmulStages_t = cublasLtMatmulStages_t(
        9,
    );
    pub const CUBLASLT_MATMUL_STAGES_32x4: cublasLtMatmulStages_t = cublasLtMatmulStages_t(
        10,
    );
    pub const CUBLASLT_MATMUL_STAGES_32x5: cublasLtMatmulStages_t = cublasLtMatmulStages_t(
        11,
    );
    pub const CUBLASLT_MATMUL_STAGES_32x6: cublasLtMatmulStages_t = cublasLtMatmulStages_t(
        12,
    );
    pub const CUBLASLT_MATMUL_STAGES_64x1: cublasLtMatmulStages_t = cublasLtMatmulStages_t(
        13,
    );
    pub const CUBLASLT_MATMUL_STAGES_64x2: cublasLtMatmulStages_t = cublasLtMatmulStages_t(
        14,
    );
    pub const CUBLASLT_MATMUL_STAGES_64x3: cublasLtMatmulStages_t = cublasLtMatmulStages_t(
        15,
    );
    pub const CUBLASLT_MATMUL_STAGES_64x4: cublasLtMatmulStages_t = cublasLtMatmulStages_t(
        16,
    );
    pub const CUBLASLT_MATMUL_STAGES_64x5: cublasLtMatmulStages_t = cublasLtMatmulStages_t(
        17,
    );
    pub const CUBLASLT_MATMUL_STAGES_64x6: cublasLtMatmulStages_t = cublasLtMatmulStages_t(
        18,
    );
    pub const CUBLASLT_MATMUL_STAGES_128x1: cublasLtMatmulStages_t = cublasLtMatmulStages_t(
        19,
    );
    pub const CUBLASLT_MATMUL_STAGES_128x2: cublasLtMatmulStages_t = cublasLtMatmulStages_t(
        20,
    );
    pub const CUBLASLT_MATMUL_STAGES_128x3: cublasLtMatmulStages_t = cublasLtMatmulStages_t(
        21,
    );
    pub const CUBLASLT_MATMUL_STAGES_128x4: cublasLtMatmulStages_t = cublasLtMatmulStages_t(
        22,
    );
    pub const CUBLASLT_MATMUL_STAGES_128x5: cublasLtMatmulStages_t = cublasLtMatmulStages_t(
        23,
    );
    pub const CUBLASLT_MATMUL_STAGES_128x6: cublasLtMatmulStages_t = cublasLtMatmulStages_t(
        24,
    );
    pub const CUBLASLT_MATMUL_STAGES_32x10: cublasLtMatmulStages_t = cublasLtMatmulStages_t(
        25,
    );
    pub const CUBLASLT_MATMUL_STAGES_8x4: cublasLtMatmulStages_t = cublasLtMatmulStages_t(
        26,
    );
    pub const CUBLASLT_MATMUL_STAGES_16x10: cublasLtMatmulStages_t = cublasLtMatmulStages_t(
        27,
    );
    pub const CUBLASLT_MATMUL_STAGES_8x5: cublasLtMatmulStages_t = cublasLtMatmulStages_t(
        28,
    );
    pub const CUBLASLT_MATMUL_STAGES_8x3: cublasLtMatmulStages_t = cublasLtMatmulStages_t(
        31,
    );
    pub const CUBLASLT_MATMUL_STAGES_8xAUTO: cublasLtMatmulStages_t = cublasLtMatmulStages_t(
        32,
    );
    pub const CUBLASLT_MATMUL_STAGES_16xAUTO: cublasLtMatmulStages_t = cublasLtMatmulStages_t(
        33,
    );
    pub const CUBLASLT_MATMUL_STAGES_32xAUTO: cublasLtMatmulStages_t = cublasLtMatmulStages_t(
        34,
    );
    pub const CUBLASLT_MATMUL_STAGES_64xAUTO: cublasLtMatmulStages_t = cublasLtMatmulStages_t(
        35,
    );
    pub const CUBLASLT_MATMUL_STAGES_128xAUTO: cublasLtMatmulStages_t = cublasLtMatmulStages_t(
        36,
    );
    pub const CUBLASLT_MATMUL_STAGES_256xAUTO: cublasLtMatmulStages_t = cublasLtMatmulStages_t(
        37,
    );
    pub const CUBLASLT_MATMUL_STAGES_768xAUTO: cublasLtMatmulStages_t = cublasLtMatmulStages_t(
        38,
    );
    pub const CUBLASLT_MATMUL_STAGES_END: cublasLtMatmulStages_t = cublasLtMatmulStages_t(
        39,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cublasLtMatmulStages_t(pub ::std::os::raw::c_uint);
impl cublasLtClusterShape_t {
    pub const CUBLASLT_CLUSTER_SHAPE_AUTO: cublasLtClusterShape_t = cublasLtClusterShape_t(
        0,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_1x1x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        2,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_2x1x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        3,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_4x1x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        4,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_1x2x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        5,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_2x2x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        6,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_4x2x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        7,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_1x4x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        8,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_2x4x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        9,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_4x4x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        10,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_8x1x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        11,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_1x8x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        12,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_8x2x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        13,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_2x8x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        14,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_16x1x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        15,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_1x16x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        16,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_3x1x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        17,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_5x1x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        18,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_6x1x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        19,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_7x1x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        20,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_9x1x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        21,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_10x1x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        22,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_11x1x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        23,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_12x1x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        24,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_13x1x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        25,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_14x1x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        26,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_15x1x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        27,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_3x2x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        28,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_5x2x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        29,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_6x2x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        30,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_7x2x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        31,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_1x3x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        32,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_2x3x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        33,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_3x3x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        34,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_4x3x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        35,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_5x3x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        36,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_3x4x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        37,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_1x5x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        38,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_2x5x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        39,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_3x5x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        40,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_1x6x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        41,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_2x6x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        42,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_1x7x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        43,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_2x7x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        44,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_1x9x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        45,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_1x10x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        46,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_1x11x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        47,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_1x12x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        48,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_1x13x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        49,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_1x14x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        50,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_1x15x1: cublasLtClusterShape_t = cublasLtClusterShape_t(
        51,
    );
    pub const CUBLASLT_CLUSTER_SHAPE_END: cublasLtClusterShape_t = cublasLtClusterShape_t(
        52,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cublasLtClusterShape_t(pub ::std::os::raw::c_uint);
impl cublasLtMatmulInnerShape_t {
    pub const CUBLASLT_MATMUL_INNER_SHAPE_UNDEFINED: cublasLtMatmulInnerShape_t = cublasLtMatmulInnerShape_t(
        0,
    );
    pub const CUBLASLT_MATMUL_INNER_SHAPE_MMA884: cublasLtMatmulInnerShape_t = cublasLtMatmulInnerShape_t(
        1,
    );
    pub const CUBLASLT_MATMUL_INNER_SHAPE_MMA1684: cublasLtMatmulInnerShape_t = cublasLtMatmulInnerShape_t(
        2,
    );
    pub const CUBLASLT_MATMUL_INNER_SHAPE_MMA1688: cublasLtMatmulInnerShape_t = cublasLtMatmulInnerShape_t(
        3,
    );
    pub const CUBLASLT_MATMUL_INNER_SHAPE_MMA16816: cublasLtMatmulInnerShape_t = cublasLtMatmulInnerShape_t(
        4,
    );
    pub const CUBLASLT_MATMUL_INNER_SHAPE_END: cublasLtMatmulInnerShape_t = cublasLtMatmulInnerShape_t(
        5,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cublasLtMatmulInnerShape_t(pub ::std::os::raw::c_uint);
impl cublasLtMatmulMatrixScale_t {
    pub const CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F: cublasLtMatmulMatrixScale_t = cublasLtMatmulMatrixScale_t(
        0,
    );
    pub const CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3: cublasLtMatmulMatrixScale_t = cublasLtMatmulMatrixScale_t(
        1,
    );
    pub const CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0: cublasLtMatmulMatrixScale_t = cublasLtMatmulMatrixScale_t(
        2,
    );
    pub const CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F: cublasLtMatmulMatrixScale_t = cublasLtMatmulMatrixScale_t(
        3,
    );
    pub const CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F: cublasLtMatmulMatrixScale_t = cublasLtMatmulMatrixScale_t(
        4,
    );
    pub const CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F: cublasLtMatmulMatrixScale_t = cublasLtMatmulMatrixScale_t(
        5,
    );
    pub const CUBLASLT_MATMUL_MATRIX_SCALE_PER_BATCH_SCALAR_32F: cublasLtMatmulMatrixScale_t = cublasLtMatmulMatrixScale_t(
        6,
    );
    pub const CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_MN_K4_UE8M0: cublasLtMatmulMatrixScale_t = cublasLtMatmulMatrixScale_t(
        12,
    );
    pub const CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_MN_K4_UE8M0: cublasLtMatmulMatrixScale_t = cublasLtMatmulMatrixScale_t(
        13,
    );
    pub const CUBLASLT_MATMUL_MATRIX_SCALE_END: cublasLtMatmulMatrixScale_t = cublasLtMatmulMatrixScale_t(
        14,
    );
    pub const CUBLASLT_MATMUL_MATRIX_SCALE_RESERVED: cublasLtMatmulMatrixScale_t = cublasLtMatmulMatrixScale_t(
        127,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cublasLtMatmulMatrixScale_t(pub ::std::os::raw::c_uint);
impl cublasLtPointerMode_t {
    pub const CUBLASLT_POINTER_MODE_HOST: cublasLtPointerMode_t = cublasLtPointerMode_t(
        0,
    );
    pub const CUBLASLT_POINTER_MODE_DEVICE: cublasLtPointerMode_t = cublasLtPointerMode_t(
        1,
    );
    pub const CUBLASLT_POINTER_MODE_DEVICE_VECTOR: cublasLtPointerMode_t = cublasLtPointerMode_t(
        2,
    );
    pub const CUBLASLT_POINTER_MODE_ALPHA_DEVICE_VECTOR_BETA_ZERO: cublasLtPointerMode_t = cublasLtPointerMode_t(
        3,
    );
    pub const CUBLASLT_POINTER_MODE_ALPHA_DEVICE_VECTOR_BETA_HOST: cublasLtPointerMode_t = cublasLtPointerMode_t(
        4,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cublasLtPointerMode_t(pub ::std::os::raw::c_uint);
impl cublasLtPointerModeMask_t {
    pub const CUBLASLT_POINTER_MODE_MASK_HOST: cublasLtPointerModeMask_t = cublasLtPointerModeMask_t(
        1,
    );
    pub const CUBLASLT_POINTER_MODE_MASK_DEVICE: cublasLtPointerModeMask_t = cublasLtPointerModeMask_t(
        2,
    );
    pub const CUBLASLT_POINTER_MODE_MASK_DEVICE_VECTOR: cublasLtPointerModeMask_t = cublasLtPointerModeMask_t(
        4,
    );
    pub const CUBLASLT_POINTER_MODE_MASK_ALPHA_DEVICE_VECTOR_BETA_ZERO: cublasLtPointerModeMask_t = cublasLtPointerModeMask_t(
        8,
    );
    pub const CUBLASLT_POINTER_MODE_MASK_ALPHA_DEVICE_VECTOR_BETA_HOST: cublasLtPointerModeMask_t = cublasLtPointerModeMask_t(
        16,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cublasLtPointerModeMask_t(pub ::std::os::raw::c_uint);
pub type cublasLtNumericalImplFlags_t = u64;
impl cublasLtOrder_t {
    pub const CUBLASLT_ORDER_COL: cublasLtOrder_t = cublasLtOrder_t(0);
    pub const CUBLASLT_ORDER_ROW: cublasLtOrder_t = cublasLtOrder_t(1);
    pub const CUBLASLT_ORDER_COL32: cublasLtOrder_t = cublasLtOrder_t(2);
    pub const CUBLASLT_ORDER_COL4_4R2_8C: cublasLtOrder_t = cublasLtOrder_t(3);
    pub const CUBLASLT_ORDER_COL32_2R_4R4: cublasLtOrder_t = cublasLtOrder_t(4);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cublasLtOrder_t(pub ::std::os::raw::c_uint);
impl cublasLtBatchMode_t {
    pub const CUBLASLT_BATCH_MODE_STRIDED: cublasLtBatchMode_t = cublasLtBatchMode_t(0);
    pub const CUBLASLT_BATCH_MODE_POINTER_ARRAY: cublasLtBatchMode_t = cublasLtBatchMode_t(
        1,
    );
    pub const CUBLASLT_BATCH_MODE_GROUPED: cublasLtBatchMode_t = cublasLtBatchMode_t(2);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cublasLtBatchMode_t(pub ::std::os::raw::c_uint);
impl cublasLtIntegerWidth_t {
    pub const CUBLASLT_INTEGER_WIDTH_32: cublasLtIntegerWidth_t = cublasLtIntegerWidth_t(
        0,
    );
    pub const CUBLASLT_INTEGER_WIDTH_64: cublasLtIntegerWidth_t = cublasLtIntegerWidth_t(
        1,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cublasLtIntegerWidth_t(pub ::std::os::raw::c_uint);
impl cublasLtMatrixLayoutAttribute_t {
    pub const CUBLASLT_MATRIX_LAYOUT_TYPE: cublasLtMatrixLayoutAttribute_t = cublasLtMatrixLayoutAttribute_t(
        0,
    );
    pub const CUBLASLT_MATRIX_LAYOUT_ORDER: cublasLtMatrixLayoutAttribute_t = cublasLtMatrixLayoutAttribute_t(
        1,
    );
    pub const CUBLASLT_MATRIX_LAYOUT_ROWS: cublasLtMatrixLayoutAttribute_t = cublasLtMatrixLayoutAttribute_t(
        2,
    );
    pub const CUBLASLT_MATRIX_LAYOUT_COLS: cublasLtMatrixLayoutAttribute_t = cublasLtMatrixLayoutAttribute_t(
        3,
    );
    pub const CUBLASLT_MATRIX_LAYOUT_LD: cublasLtMatrixLayoutAttribute_t = cublasLtMatrixLayoutAttribute_t(
        4,
    );
    pub const CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: cublasLtMatrixLayoutAttribute_t = cublasLtMatrixLayoutAttribute_t(
        5,
    );
    pub const CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: cublasLtMatrixLayoutAttribute_t = cublasLtMatrixLayoutAttribute_t(
        6,
    );
    pub const CUBLASLT_MATRIX_LAYOUT_PLANE_OFFSET: cublasLtMatrixLayoutAttribute_t = cublasLtMatrixLayoutAttribute_t(
        7,
    );
    pub const CUBLASLT_MATRIX_LAYOUT_BATCH_MODE: cublasLtMatrixLayoutAttribute_t = cublasLtMatrixLayoutAttribute_t(
        8,
    );
    pub const CUBLASLT_GROUPED_MATRIX_LAYOUT_ROWS_ARRAY: cublasLtMatrixLayoutAttribute_t = cublasLtMatrixLayoutAttribute_t(
        9,
    );
    pub const CUBLASLT_GROUPED_MATRIX_LAYOUT_COLS_ARRAY: cublasLtMatrixLayoutAttribute_t = cublasLtMatrixLayoutAttribute_t(
        10,
    );
    pub const CUBLASLT_GROUPED_MATRIX_LAYOUT_LD_ARRAY: cublasLtMatrixLayoutAttribute_t = cublasLtMatrixLayoutAttribute_t(
        11,
    );
    pub const CUBLASLT_GROUPED_MATRIX_LAYOUT_ROWS_COLS_ARRAY_INTEGER_WIDTH: cublasLtMatrixLayoutAttribute_t = cublasLtMatrixLayoutAttribute_t(
        12,
    );
    pub const CUBLASLT_GROUPED_MATRIX_LAYOUT_LD_ARRAY_INTEGER_WIDTH: cublasLtMatrixLayoutAttribute_t = cublasLtMatrixLayoutAttribute_t(
        13,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cublasLtMatrixLayoutAttribute_t(pub ::std::os::raw::c_uint);
impl cublasLtMatmulDescAttributes_t {
    pub const CUBLASLT_MATMUL_DESC_COMPUTE_TYPE: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(
        0,
    );
    pub const CUBLASLT_MATMUL_DESC_SCALE_TYPE: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(
        1,
    );
    pub const CUBLASLT_MATMUL_DESC_POINTER_MODE: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(
        2,
    );
    pub const CUBLASLT_MATMUL_DESC_TRANSA: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(
        3,
    );
    pub const CUBLASLT_MATMUL_DESC_TRANSB: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(
        4,
    );
    pub const CUBLASLT_MATMUL_DESC_TRANSC: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(
        5,
    );
    pub const CUBLASLT_MATMUL_DESC_FILL_MODE: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(
        6,
    );
    pub const CUBLASLT_MATMUL_DESC_EPILOGUE: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(
        7,
    );
    pub const CUBLASLT_MATMUL_DESC_BIAS_POINTER: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(
        8,
    );
    pub const CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(
        10,
    );
    pub const CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(
        11,
    );
    pub const CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(
        12,
    );
    pub const CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(
        13,
    );
    pub const CUBLASLT_MATMUL_DESC_ALPHA_VECTOR_BATCH_STRIDE: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(
        14,
    );
    pub const CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(
        15,
    );
    pub const CUBLASLT_MATMUL_DESC_A_SCALE_POINTER: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(
        17,
    );
    pub const CUBLASLT_MATMUL_DESC_B_SCALE_POINTER: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(
        18,
    );
    pub const CUBLASLT_MATMUL_DESC_C_SCALE_POINTER: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(
        19,
    );
    pub const CUBLASLT_MATMUL_DESC_D_SCALE_POINTER: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(
        20,
    );
    pub const CUBLASLT_MATMUL_DESC_AMAX_D_POINTER: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(
        21,
    );
    pub const CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(
        22,
    );
    pub const CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_SCALE_POINTER: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(
        23,
    );
    pub const CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_AMAX_POINTER: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(
        24,
    );
    pub const CUBLASLT_MATMUL_DESC_FAST_ACCUM: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(
        25,
    );
    pub const CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(
        26,
    );
    pub const CUBLASLT_MATMUL_DESC_A_SCALE_MODE: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(
        31,
    );
    pub const CUBLASLT_MATMUL_DESC_B_SCALE_MODE: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(
        32,
    );
    pub const CUBLASLT_MATMUL_DESC_C_SCALE_MODE: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(
        33,
    );
    pub const CUBLASLT_MATMUL_DESC_D_SCALE_MODE: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(
        34,
    );
    pub const CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_SCALE_MODE: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(
        35,
    );
    pub const CUBLASLT_MATMUL_DESC_D_OUT_SCALE_POINTER: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(
        36,
    );
    pub const CUBLASLT_MATMUL_DESC_D_OUT_SCALE_MODE: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(
        37,
    );
    pub const CUBLASLT_MATMUL_DESC_EMULATION_DESCRIPTOR: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(
        38,
    );
    pub const CUBLASLT_MATMUL_DESC_ALPHA_BATCH_STRIDE: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(
        39,
    );
    pub const CUBLASLT_MATMUL_DESC_BETA_BATCH_STRIDE: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(
        40,
    );
    pub const CUBLASLT_MATMUL_DESC_BATCH_INVARIANCE_FLAGS: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(
        41,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cublasLtMatmulDescAttributes_t(pub ::std::os::raw::c_uint);
impl cublasLtMatmulBatchInvarianceFlags_t {
    pub const CUBLASLT_BATCH_INVARIANCE_DISABLED: cublasLtMatmulBatchInvarianceFlags_t = cublasLtMatmulBatchInvarianceFlags_t(
        0,
    );
    pub const CUBLASLT_BATCH_INVARIANCE_ALIGN_2B: cublasLtMatmulBatchInvarianceFlags_t = cublasLtMatmulBatchInvarianceFlags_t(
        1,
    );
    pub const CUBLASLT_BATCH_INVARIANCE_ALIGN_4B: cublasLtMatmulBatchInvarianceFlags_t = cublasLtMatmulBatchInvarianceFlags_t(
        2,
    );
    pub const CUBLASLT_BATCH_INVARIANCE_ALIGN_8B: cublasLtMatmulBatchInvarianceFlags_t = cublasLtMatmulBatchInvarianceFlags_t(
        3,
    );
    pub const CUBLASLT_BATCH_INVARIANCE_ALIGN_16B: cublasLtMatmulBatchInvarianceFlags_t = cublasLtMatmulBatchInvarianceFlags_t(
        4,
    );
    pub const CUBLASLT_BATCH_INVARIANCE_AUTO: cublasLtMatmulBatchInvarianceFlags_t = cublasLtMatmulBatchInvarianceFlags_t(
        8,
    );
    pub const CUBLASLT_BATCH_INVARIANCE_UNSET: cublasLtMatmulBatchInvarianceFlags_t = cublasLtMatmulBatchInvarianceFlags_t(
        32768,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cublasLtMatmulBatchInvarianceFlags_t(pub ::std::os::raw::c_uint);
impl cublasLtMatrixTransformDescAttributes_t {
    pub const CUBLASLT_MATRIX_TRANSFORM_DESC_SCALE_TYPE: cublasLtMatrixTransformDescAttributes_t = cublasLtMatrixTransformDescAttributes_t(
        0,
    );
    pub const CUBLASLT_MATRIX_TRANSFORM_DESC_POINTER_MODE: cublasLtMatrixTransformDescAttributes_t = cublasLtMatrixTransformDescAttributes_t(
        1,
    );
    pub const CUBLASLT_MATRIX_TRANSFORM_DESC_TRANSA: cublasLtMatrixTransformDescAttributes_t = cublasLtMatrixTransformDescAttributes_t(
        2,
    );
    pub const CUBLASLT_MATRIX_TRANSFORM_DESC_TRANSB: cublasLtMatrixTransformDescAttributes_t = cublasLtMatrixTransformDescAttributes_t(
        3,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cublasLtMatrixTransformDescAttributes_t(pub ::std::os::raw::c_uint);
impl cublasLtEmulationDescAttributes_t {
    pub const CUBLASLT_EMULATION_DESC_STRATEGY: cublasLtEmulationDescAttributes_t = cublasLtEmulationDescAttributes_t(
        0,
    );
    pub const CUBLASLT_EMULATION_DESC_SPECIAL_VALUES_SUPPORT: cublasLtEmulationDescAttributes_t = cublasLtEmulationDescAttributes_t(
        1,
    );
    pub const CUBLASLT_EMULATION_DESC_FIXEDPOINT_MANTISSA_CONTROL: cublasLtEmulationDescAttributes_t = cublasLtEmulationDescAttributes_t(
        2,
    );
    pub const CUBLASLT_EMULATION_DESC_FIXEDPOINT_MAX_MANTISSA_BIT_COUNT: cublasLtEmulationDescAttributes_t = cublasLtEmulationDescAttributes_t(
        3,
    );
    pub const CUBLASLT_EMULATION_DESC_FIXEDPOINT_MANTISSA_BIT_OFFSET: cublasLtEmulationDescAttributes_t = cublasLtEmulationDescAttributes_t(
        4,
    );
    pub const CUBLASLT_EMULATION_DESC_FIXEDPOINT_MANTISSA_BIT_COUNT_POINTER: cublasLtEmulationDescAttributes_t = cublasLtEmulationDescAttributes_t(
        5,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cublasLtEmulationDescAttributes_t(pub ::std::os::raw::c_uint);
impl cublasLtReductionScheme_t {
    pub const CUBLASLT_REDUCTION_SCHEME_NONE: cublasLtReductionScheme_t = cublasLtReductionScheme_t(
        0,
    );
    pub const CUBLASLT_REDUCTION_SCHEME_INPLACE: cublasLtReductionScheme_t = cublasLtReductionScheme_t(
        1,
    );
    pub const CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE: cublasLtReductionScheme_t = cublasLtReductionScheme_t(
        2,
    );
    pub const CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE: cublasLtReductionScheme_t = cublasLtReductionScheme_t(
        4,
    );
    pub const CUBLASLT_REDUCTION_SCHEME_MASK: cublasLtReductionScheme_t = cublasLtReductionScheme_t(
        7,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cublasLtReductionScheme_t(pub ::std::os::raw::c_uint);
impl cublasLtEpilogue_t {
    pub const CUBLASLT_EPILOGUE_DEFAULT: cublasLtEpilogue_t = cublasLtEpilogue_t(1);
    pub const CUBLASLT_EPILOGUE_RELU: cublasLtEpilogue_t = cublasLtEpilogue_t(2);
    pub const CUBLASLT_EPILOGUE_RELU_AUX: cublasLtEpilogue_t = cublasLtEpilogue_t(130);
    pub const CUBLASLT_EPILOGUE_BIAS: cublasLtEpilogue_t = cublasLtEpilogue_t(4);
    pub const CUBLASLT_EPILOGUE_RELU_BIAS: cublasLtEpilogue_t = cublasLtEpilogue_t(6);
    pub const CUBLASLT_EPILOGUE_RELU_AUX_BIAS: cublasLtEpilogue_t = cublasLtEpilogue_t(
        134,
    );
    pub const CUBLASLT_EPILOGUE_DRELU: cublasLtEpilogue_t = cublasLtEpilogue_t(136);
    pub const CUBLASLT_EPILOGUE_DRELU_BGRAD: cublasLtEpilogue_t = cublasLtEpilogue_t(
        152,
    );
    pub const CUBLASLT_EPILOGUE_GELU: cublasLtEpilogue_t = cublasLtEpilogue_t(32);
    pub const CUBLASLT_EPILOGUE_GELU_AUX: cublasLtEpilogue_t = cublasLtEpilogue_t(160);
    pub const CUBLASLT_EPILOGUE_GELU_BIAS: cublasLtEpilogue_t = cublasLtEpilogue_t(36);
    pub const CUBLASLT_EPILOGUE_GELU_AUX_BIAS: cublasLtEpilogue_t = cublasLtEpilogue_t(
        164,
    );
    pub const CUBLASLT_EPILOGUE_DGELU: cublasLtEpilogue_t = cublasLtEpilogue_t(192);
    pub const CUBLASLT_EPILOGUE_DGELU_BGRAD: cublasLtEpilogue_t = cublasLtEpilogue_t(
        208,
    );
    pub const CUBLASLT_EPILOGUE_BGRADA: cublasLtEpilogue_t = cublasLtEpilogue_t(256);
    pub const CUBLASLT_EPILOGUE_BGRADB: cublasLtEpilogue_t = cublasLtEpilogue_t(512);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cublasLtEpilogue_t(pub ::std::os::raw::c_uint);
impl cublasLtMatmulSearch_t {
    pub const CUBLASLT_SEARCH_BEST_FIT: cublasLtMatmulSearch_t = cublasLtMatmulSearch_t(
        0,
    );
    pub const CUBLASLT_SEARCH_LIMITED_BY_ALGO_ID: cublasLtMatmulSearch_t = cublasLtMatmulSearch_t(
        1,
    );
    pub const CUBLASLT_SEARCH_RESERVED_02: cublasLtMatmulSearch_t = cublasLtMatmulSearch_t(
        2,
    );
    pub const CUBLASLT_SEARCH_RESERVED_03: cublasLtMatmulSearch_t = cublasLtMatmulSearch_t(
        3,
    );
    pub const CUBLASLT_SEARCH_RESERVED_04: cublasLtMatmulSearch_t = cublasLtMatmulSearch_t(
        4,
    );
    pub const CUBLASLT_SEARCH_RESERVED_05: cublasLtMatmulSearch_t = cublasLtMatmulSearch_t(
        5,
    );
    pub const CUBLASLT_SEARCH_RESERVED_06: cublasLtMatmulSearch_t = cublasLtMatmulSearch_t(
        6,
    );
    pub const CUBLASLT_SEARCH_RESERVED_07: cublasLtMatmulSearch_t = cublasLtMatmulSearch_t(
        7,
    );
    pub const CUBLASLT_SEARCH_RESERVED_08: cublasLtMatmulSearch_t = cublasLtMatmulSearch_t(
        8,
    );
    pub const CUBLASLT_SEARCH_RESERVED_09: cublasLtMatmulSearch_t = cublasLtMatmulSearch_t(
        9,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cublasLtMatmulSearch_t(pub ::std::os::raw::c_uint);
impl cublasLtMatmulPreferenceAttributes_t {
    pub const CUBLASLT_MATMUL_PREF_SEARCH_MODE: cublasLtMatmulPreferenceAttributes_t = cublasLtMatmulPreferenceAttributes_t(
        0,
    );
    pub const CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: cublasLtMatmulPreferenceAttributes_t = cublasLtMatmulPreferenceAttributes_t(
        1,
    );
    pub const CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: cublasLtMatmulPreferenceAttributes_t = cublasLtMatmulPreferenceAttributes_t(
        3,
    );
    pub const CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: cublasLtMatmulPreferenceAttributes_t = cublasLtMatmulPreferenceAttributes_t(
        5,
    );
    pub const CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: cublasLtMatmulPreferenceAttributes_t = cublasLtMatmulPreferenceAttributes_t(
        6,
    );
    pub const CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: cublasLtMatmulPreferenceAttributes_t = cublasLtMatmulPreferenceAttributes_t(
        7,
    );
    pub const CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: cublasLtMatmulPreferenceAttributes_t = cublasLtMatmulPreferenceAttributes_t(
        8,
    );
    pub const CUBLASLT_MATMUL_PREF_MAX_WAVES_COUNT: cublasLtMatmulPreferenceAttributes_t = cublasLtMatmulPreferenceAttributes_t(
        9,
    );
    pub const CUBLASLT_MATMUL_PREF_IMPL_MASK: cublasLtMatmulPreferenceAttributes_t = cublasLtMatmulPreferenceAttributes_t(
        12,
    );
    pub const CUBLASLT_MATMUL_PREF_GROUPED_AVERAGE_REDUCTION_DIM: cublasLtMatmulPreferenceAttributes_t = cublasLtMatmulPreferenceAttributes_t(
        13,
    );
    pub const CUBLASLT_MATMUL_PREF_GROUPED_DESC_D_AVERAGE_ROWS: cublasLtMatmulPreferenceAttributes_t = cublasLtMatmulPreferenceAttributes_t(
        14,
    );
    pub const CUBLASLT_MATMUL_PREF_GROUPED_DESC_D_AVERAGE_COLS: cublasLtMatmulPreferenceAttributes_t = cublasLtMatmulPreferenceAttributes_t(
        15,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cublasLtMatmulPreferenceAttributes_t(pub ::std::os::raw::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone, PartialEq)]
pub struct cublasLtMatmulHeuristicResult_t {
    pub algo: cublasLtMatmulAlgo_t,
    pub workspaceSize: usize,
    pub state: cublasStatus_t,
    pub wavesCount: f32,
    pub reserved: [::std::os::raw::c_int; 4usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of cublasLtMatmulHeuristicResult_t",
    ][::std::mem::size_of::<cublasLtMatmulHeuristicResult_t>() - 96usize];
    [
        "Alignment of cublasLtMatmulHeuristicResult_t",
    ][::std::mem::align_of::<cublasLtMatmulHeuristicResult_t>() - 8usize];
    [
        "Offset of field: cublasLtMatmulHeuristicResult_t::algo",
    ][::std::mem::offset_of!(cublasLtMatmulHeuristicResult_t, algo) - 0usize];
    [
        "Offset of field: cublasLtMatmulHeuristicResult_t::workspaceSize",
    ][::std::mem::offset_of!(cublasLtMatmulHeuristicResult_t, workspaceSize) - 64usize];
    [
        "Offset of field: cublasLtMatmulHeuristicResult_t::state",
    ][::std::mem::offset_of!(cublasLtMatmulHeuristicResult_t, state) - 72usize];
    [
        "Offset of field: cublasLtMatmulHeuristicResult_t::wavesCount",
    ][::std::mem::offset_of!(cublasLtMatmulHeuristicResult_t, wavesCount) - 76usize];
    [
        "Offset of field: cublasLtMatmulHeuristicResult_t::reserved",
    ][::std::mem::offset_of!(cublasLtMatmulHeuristicResult_t, reserved) - 80usize];
};
impl cublasLtMatmulAlgoCapAttributes_t {
    pub const CUBLASLT_ALGO_CAP_SPLITK_SUPPORT: cublasLtMatmulAlgoCapAttributes_t = cublasLtMatmulAlgoCapAttributes_t(
        0,
    );
    pub const CUBLASLT_ALGO_CAP_REDUCTION_SCHEME_MASK: cublasLtMatmulAlgoCapAttributes_t = cublasLtMatmulAlgoCapAttributes_t(
        1,
    );
    pub const CUBLASLT_ALGO_CAP_CTA_SWIZZLING_SUPPORT: cublasLtMatmulAlgoCapAttributes_t = cublasLtMatmulAlgoCapAttributes_t(
        2,
    );
    pub const CUBLASLT_ALGO_CAP_STRIDED_BATCH_SUPPORT: cublasLtMatmulAlgoCapAttributes_t = cublasLtMatmulAlgoCapAttributes_t(
        3,
    );
    pub const CUBLASLT_ALGO_CAP_OUT_OF_PLACE_RESULT_SUPPORT: cublasLtMatmulAlgoCapAttributes_t = cublasLtMatmulAlgoCapAttributes_t(
        4,
    );
    pub const CUBLASLT_ALGO_CAP_UPLO_SUPPORT: cublasLtMatmulAlgoCapAttributes_t = cublasLtMatmulAlgoCapAttributes_t(
        5,
    );
    pub const CUBLASLT_ALGO_CAP_TILE_IDS: cublasLtMatmulAlgoCapAttributes_t = cublasLtMatmulAlgoCapAttributes_t(
        6,
    );
    pub const CUBLASLT_ALGO_CAP_CUSTOM_OPTION_MAX: cublasLtMatmulAlgoCapAttributes_t = cublasLtMatmulAlgoCapAttributes_t(
        7,
    );
    pub const CUBLASLT_ALGO_CAP_CUSTOM_MEMORY_ORDER: cublasLtMatmulAlgoCapAttributes_t = cublasLtMatmulAlgoCapAttributes_t(
        10,
    );
    pub const CUBLASLT_ALGO_CAP_POINTER_MODE_MASK: cublasLtMatmulAlgoCapAttributes_t = cublasLtMatmulAlgoCapAttributes_t(
        11,
    );
    pub const CUBLASLT_ALGO_CAP_EPILOGUE_MASK: cublasLtMatmulAlgoCapAttributes_t = cublasLtMatmulAlgoCapAttributes_t(
        12,
    );
    pub const CUBLASLT_ALGO_CAP_STAGES_IDS: cublasLtMatmulAlgoCapAttributes_t = cublasLtMatmulAlgoCapAttributes_t(
        13,
    );
    pub const CUBLASLT_ALGO_CAP_LD_NEGATIVE: cublasLtMatmulAlgoCapAttributes_t = cublasLtMatmulAlgoCapAttributes_t(
        14,
    );
    pub const CUBLASLT_ALGO_CAP_NUMERICAL_IMPL_FLAGS: cublasLtMatmulAlgoCapAttributes_t = cublasLtMatmulAlgoCapAttributes_t(
        15,
    );
    pub const CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_A_BYTES: cublasLtMatmulAlgoCapAttributes_t = cublasLtMatmulAlgoCapAttributes_t(
        16,
    );
    pub const CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_B_BYTES: cublasLtMatmulAlgoCapAttributes_t = cublasLtMatmulAlgoCapAttributes_t(
        17,
    );
    pub const CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_C_BYTES: cublasLtMatmulAlgoCapAttributes_t = cublasLtMatmulAlgoCapAttributes_t(
        18,
    );
    pub const CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_D_BYTES: cublasLtMatmulAlgoCapAttributes_t = cublasLtMatmulAlgoCapAttributes_t(
        19,
    );
    pub const CUBLASLT_ALGO_CAP_POINTER_ARRAY_BATCH_SUPPORT: cublasLtMatmulAlgoCapAttributes_t = cublasLtMatmulAlgoCapAttributes_t(
        21,
    );
    pub const CUBLASLT_ALGO_CAP_FLOATING_POINT_EMULATION_SUPPORT: cublasLtMatmulAlgoCapAttributes_t = cublasLtMatmulAlgoCapAttributes_t(
        22,
    );
    pub const CUBLASLT_ALGO_CAP_POINTER_ARRAY_GROUPED_SUPPORT: cublasLtMatmulAlgoCapAttributes_t = cublasLtMatmulAlgoCapAttributes_t(
        23,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cublasLtMatmulAlgoCapAttributes_t(pub ::std::os::raw::c_uint);
impl cublasLtMatmulAlgoConfigAttributes_t {
    pub const CUBLASLT_ALGO_CONFIG_ID: cublasLtMatmulAlgoConfigAttributes_t = cublasLtMatmulAlgoConfigAttributes_t(
        0,
    );
    pub const CUBLASLT_ALGO_CONFIG_TILE_ID: cublasLtMatmulAlgoConfigAttributes_t = cublasLtMatmulAlgoConfigAttributes_t(
        1,
    );
    pub const CUBLASLT_ALGO_CONFIG_SPLITK_NUM: cublasLtMatmulAlgoConfigAttributes_t = cublasLtMatmulAlgoConfigAttributes_t(
        2,
    );
    pub const CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME: cublasLtMatmulAlgoConfigAttributes_t = cublasLtMatmulAlgoConfigAttributes_t(
        3,
    );
    pub const CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING: cublasLtMatmulAlgoConfigAttributes_t = cublasLtMatmulAlgoConfigAttributes_t(
        4,
    );
    pub const CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION: cublasLtMatmulAlgoConfigAttributes_t = cublasLtMatmulAlgoConfigAttributes_t(
        5,
    );
    pub const CUBLASLT_ALGO_CONFIG_STAGES_ID: cublasLtMatmulAlgoConfigAttributes_t = cublasLtMatmulAlgoConfigAttributes_t(
        6,
    );
    pub const CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID: cublasLtMatmulAlgoConfigAttributes_t = cublasLtMatmulAlgoConfigAttributes_t(
        7,
    );
    pub const CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID: cublasLtMatmulAlgoConfigAttributes_t = cublasLtMatmulAlgoConfigAttributes_t(
        8,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cublasLtMatmulAlgoConfigAttributes_t(pub ::std::os::raw::c_uint);
pub type cublasLtLoggerCallback_t = ::std::option::Option<
    unsafe extern "C" fn(
        logLevel: ::std::os::raw::c_int,
        functionName: *const ::std::os::raw::c_char,
        message: *const ::std::os::raw::c_char,
    ),
>;
pub struct CublasLt {
    __library: ::libloading::Library,
    pub cublasLtCreate: Result<
        unsafe extern "C" fn(lightHandle: *mut cublasLtHandle_t) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtDestroy: Result<
        unsafe extern "C" fn(lightHandle: cublasLtHandle_t) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtGetStatusName: Result<
        unsafe extern "C" fn(status: cublasStatus_t) -> *const ::std::os::raw::c_char,
        ::libloading::Error,
    >,
    pub cublasLtGetStatusString: Result<
        unsafe extern "C" fn(status: cublasStatus_t) -> *const ::std::os::raw::c_char,
        ::libloading::Error,
    >,
    pub cublasLtGetVersion: Result<unsafe extern "C" fn() -> usize, ::libloading::Error>,
    pub cublasLtGetCudartVersion: Result<
        unsafe extern "C" fn() -> usize,
        ::libloading::Error,
    >,
    pub cublasLtGetProperty: Result<
        unsafe extern "C" fn(
            type_: libraryPropertyType,
            value: *mut ::std::os::raw::c_int,
        ) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtHeuristicsCacheGetCapacity: Result<
        unsafe extern "C" fn(capacity: *mut usize) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtHeuristicsCacheSetCapacity: Result<
        unsafe extern "C" fn(capacity: usize) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtMatmul: Result<
        unsafe extern "C" fn(
            lightHandle: cublasLtHandle_t,
            computeDesc: cublasLtMatmulDesc_t,
            alpha: *const ::std::os::raw::c_void,
            A: *const ::std::os::raw::c_void,
            Adesc: cublasLtMatrixLayout_t,
            B: *const ::std::os::raw::c_void,
            Bdesc: cublasLtMatrixLayout_t,
            beta: *const ::std::os::raw::c_void,
            C: *const ::std::os::raw::c_void,
            Cdesc: cublasLtMatrixLayout_t,
            D: *mut ::std::os::raw::c_void,
            Ddesc: cublasLtMatrixLayout_t,
            algo: *const cublasLtMatmulAlgo_t,
            workspace: *mut ::std::os::raw::c_void,
            workspaceSizeInBytes: usize,
            stream: cudaStream_t,
        ) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtMatrixTransform: Result<
        unsafe extern "C" fn(
            lightHandle: cublasLtHandle_t,
            transformDesc: cublasLtMatrixTransformDesc_t,
            alpha: *const ::std::os::raw::c_void,
            A: *const ::std::os::raw::c_void,
            Adesc: cublasLtMatrixLayout_t,
            beta: *const ::std::os::raw::c_void,
            B: *const ::std::os::raw::c_void,
            Bdesc: cublasLtMatrixLayout_t,
            C: *mut ::std::os::raw::c_void,
            Cdesc: cublasLtMatrixLayout_t,
            stream: cudaStream_t,
        ) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtMatrixLayoutInit_internal: Result<
        unsafe extern "C" fn(
            matLayout: cublasLtMatrixLayout_t,
            size: usize,
            type_: cudaDataType,
            rows: u64,
            cols: u64,
            ld: i64,
        ) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtGroupedMatrixLayoutInit_internal: Result<
        unsafe extern "C" fn(
            matLayout: cublasLtMatrixLayout_t,
            size: usize,
            type_: cudaDataType,
            groupCount: ::std::os::raw::c_int,
            rows_array: *const ::std::os::raw::c_void,
            cols_array: *const ::std::os::raw::c_void,
            ld_array: *const ::std::os::raw::c_void,
        ) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtMatrixLayoutCreate: Result<
        unsafe extern "C" fn(
            matLayout: *mut cublasLtMatrixLayout_t,
            type_: cudaDataType,
            rows: u64,
            cols: u64,
            ld: i64,
        ) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtGroupedMatrixLayoutCreate: Result<
        unsafe extern "C" fn(
            matLayout: *mut cublasLtMatrixLayout_t,
            type_: cudaDataType,
            groupCount: ::std::os::raw::c_int,
            rows_array: *const ::std::os::raw::c_void,
            cols_array: *const ::std::os::raw::c_void,
            ld_array: *const ::std::os::raw::c_void,
        ) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtMatrixLayoutDestroy: Result<
        unsafe extern "C" fn(matLayout: cublasLtMatrixLayout_t) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtMatrixLayoutSetAttribute: Result<
        unsafe extern "C" fn(
            matLayout: cublasLtMatrixLayout_t,
            attr: cublasLtMatrixLayoutAttribute_t,
            buf: *const ::std::os::raw::c_void,
            sizeInBytes: usize,
        ) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtMatrixLayoutGetAttribute: Result<
        unsafe extern "C" fn(
            matLayout: cublasLtMatrixLayout_t,
            attr: cublasLtMatrixLayoutAttribute_t,
            buf: *mut ::std::os::raw::c_void,
            sizeInBytes: usize,
            sizeWritten: *mut usize,
        ) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtMatmulDescInit_internal: Result<
        unsafe extern "C" fn(
            matmulDesc: cublasLtMatmulDesc_t,
            size: usize,
            computeType: cublasComputeType_t,
            scaleType: cudaDataType_t,
        ) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtMatmulDescCreate: Result<
        unsafe extern "C" fn(
            matmulDesc: *mut cublasLtMatmulDesc_t,
            computeType: cublasComputeType_t,
            scaleType: cudaDataType_t,
        ) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtMatmulDescDestroy: Result<
        unsafe extern "C" fn(matmulDesc: cublasLtMatmulDesc_t) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtMatmulDescSetAttribute: Result<
        unsafe extern "C" fn(
            matmulDesc: cublasLtMatmulDesc_t,
            attr: cublasLtMatmulDescAttributes_t,
            buf: *const ::std::os::raw::c_void,
            sizeInBytes: usize,
        ) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtMatmulDescGetAttribute: Result<
        unsafe extern "C" fn(
            matmulDesc: cublasLtMatmulDesc_t,
            attr: cublasLtMatmulDescAttributes_t,
            buf: *mut ::std::os::raw::c_void,
            sizeInBytes: usize,
            sizeWritten: *mut usize,
        ) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtMatrixTransformDescInit_internal: Result<
        unsafe extern "C" fn(
            transformDesc: cublasLtMatrixTransformDesc_t,
            size: usize,
            scaleType: cudaDataType,
        ) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtMatrixTransformDescCreate: Result<
        unsafe extern "C" fn(
            transformDesc: *mut cublasLtMatrixTransformDesc_t,
            scaleType: cudaDataType,
        ) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtMatrixTransformDescDestroy: Result<
        unsafe extern "C" fn(
            transformDesc: cublasLtMatrixTransformDesc_t,
        ) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtMatrixTransformDescSetAttribute: Result<
        unsafe extern "C" fn(
            transformDesc: cublasLtMatrixTransformDesc_t,
            attr: cublasLtMatrixTransformDescAttributes_t,
            buf: *const ::std::os::raw::c_void,
            sizeInBytes: usize,
        ) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtMatrixTransformDescGetAttribute: Result<
        unsafe extern "C" fn(
            transformDesc: cublasLtMatrixTransformDesc_t,
            attr: cublasLtMatrixTransformDescAttributes_t,
            buf: *mut ::std::os::raw::c_void,
            sizeInBytes: usize,
            sizeWritten: *mut usize,
        ) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtEmulationDescInit_internal: Result<
        unsafe extern "C" fn(
            emulationDesc: cublasLtEmulationDesc_t,
            size: usize,
        ) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtEmulationDescCreate: Result<
        unsafe extern "C" fn(
            emulationDesc: *mut cublasLtEmulationDesc_t,
        ) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtEmulationDescDestroy: Result<
        unsafe extern "C" fn(emulationDesc: cublasLtEmulationDesc_t) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtEmulationDescSetAttribute: Result<
        unsafe extern "C" fn(
            emulationDesc: cublasLtEmulationDesc_t,
            attr: cublasLtEmulationDescAttributes_t,
            buf: *const ::std::os::raw::c_void,
            sizeInBytes: usize,
        ) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtEmulationDescGetAttribute: Result<
        unsafe extern "C" fn(
            emulationDesc: cublasLtEmulationDesc_t,
            attr: cublasLtEmulationDescAttributes_t,
            buf: *mut ::std::os::raw::c_void,
            sizeInBytes: usize,
            sizeWritten: *mut usize,
        ) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtMatmulPreferenceInit_internal: Result<
        unsafe extern "C" fn(
            pref: cublasLtMatmulPreference_t,
            size: usize,
        ) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtMatmulPreferenceCreate: Result<
        unsafe extern "C" fn(pref: *mut cublasLtMatmulPreference_t) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtMatmulPreferenceDestroy: Result<
        unsafe extern "C" fn(pref: cublasLtMatmulPreference_t) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtMatmulPreferenceSetAttribute: Result<
        unsafe extern "C" fn(
            pref: cublasLtMatmulPreference_t,
            attr: cublasLtMatmulPreferenceAttributes_t,
            buf: *const ::std::os::raw::c_void,
            sizeInBytes: usize,
        ) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtMatmulPreferenceGetAttribute: Result<
        unsafe extern "C" fn(
            pref: cublasLtMatmulPreference_t,
            attr: cublasLtMatmulPreferenceAttributes_t,
            buf: *mut ::std::os::raw::c_void,
            sizeInBytes: usize,
            sizeWritten: *mut usize,
        ) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtMatmulAlgoGetHeuristic: Result<
        unsafe extern "C" fn(
            lightHandle: cublasLtHandle_t,
            operationDesc: cublasLtMatmulDesc_t,
            Adesc: cublasLtMatrixLayout_t,
            Bdesc: cublasLtMatrixLayout_t,
            Cdesc: cublasLtMatrixLayout_t,
            Ddesc: cublasLtMatrixLayout_t,
            preference: cublasLtMatmulPreference_t,
            requestedAlgoCount: ::std::os::raw::c_int,
            heuristicResultsArray: *mut cublasLtMatmulHeuristicResult_t,
            returnAlgoCount: *mut ::std::os::raw::c_int,
        ) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtMatmulAlgoGetHeuristicForStream: Result<
        unsafe extern "C" fn(
            lightHandle: cublasLtHandle_t,
            operationDesc: cublasLtMatmulDesc_t,
            Adesc: cublasLtMatrixLayout_t,
            Bdesc: cublasLtMatrixLayout_t,
            Cdesc: cublasLtMatrixLayout_t,
            Ddesc: cublasLtMatrixLayout_t,
            preference: cublasLtMatmulPreference_t,
            requestedAlgoCount: ::std::os::raw::c_int,
            heuristicResultsArray: *mut cublasLtMatmulHeuristicResult_t,
            returnAlgoCount: *mut ::std::os::raw::c_int,
            stream: cudaStream_t,
        ) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtMatmulAlgoGetIds: Result<
        unsafe extern "C" fn(
            lightHandle: cublasLtHandle_t,
            computeType: cublasComputeType_t,
            scaleType: cudaDataType_t,
            Atype: cudaDataType_t,
            Btype: cudaDataType_t,
            Ctype: cudaDataType_t,
            Dtype: cudaDataType_t,
            requestedAlgoCount: ::std::os::raw::c_int,
            algoIdsArray: *mut ::std::os::raw::c_int,
            returnAlgoCount: *mut ::std::os::raw::c_int,
        ) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtMatmulAlgoInit: Result<
        unsafe extern "C" fn(
            lightHandle: cublasLtHandle_t,
            computeType: cublasComputeType_t,
            scaleType: cudaDataType_t,
            Atype: cudaDataType_t,
            Btype: cudaDataType_t,
            Ctype: cudaDataType_t,
            Dtype: cudaDataType_t,
            algoId: ::std::os::raw::c_int,
            algo: *mut cublasLtMatmulAlgo_t,
        ) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtMatmulAlgoCheck: Result<
        unsafe extern "C" fn(
            lightHandle: cublasLtHandle_t,
            operationDesc: cublasLtMatmulDesc_t,
            Adesc: cublasLtMatrixLayout_t,
            Bdesc: cublasLtMatrixLayout_t,
            Cdesc: cublasLtMatrixLayout_t,
            Ddesc: cublasLtMatrixLayout_t,
            algo: *const cublasLtMatmulAlgo_t,
            result: *mut cublasLtMatmulHeuristicResult_t,
        ) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtMatmulAlgoCheckForStream: Result<
        unsafe extern "C" fn(
            lightHandle: cublasLtHandle_t,
            operationDesc: cublasLtMatmulDesc_t,
            Adesc: cublasLtMatrixLayout_t,
            Bdesc: cublasLtMatrixLayout_t,
            Cdesc: cublasLtMatrixLayout_t,
            Ddesc: cublasLtMatrixLayout_t,
            algo: *const cublasLtMatmulAlgo_t,
            result: *mut cublasLtMatmulHeuristicResult_t,
            stream: cudaStream_t,
        ) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtMatmulAlgoCapGetAttribute: Result<
        unsafe extern "C" fn(
            algo: *const cublasLtMatmulAlgo_t,
            attr: cublasLtMatmulAlgoCapAttributes_t,
            buf: *mut ::std::os::raw::c_void,
            sizeInBytes: usize,
            sizeWritten: *mut usize,
        ) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtMatmulAlgoConfigSetAttribute: Result<
        unsafe extern "C" fn(
            algo: *mut cublasLtMatmulAlgo_t,
            attr: cublasLtMatmulAlgoConfigAttributes_t,
            buf: *const ::std::os::raw::c_void,
            sizeInBytes: usize,
        ) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtMatmulAlgoConfigGetAttribute: Result<
        unsafe extern "C" fn(
            algo: *const cublasLtMatmulAlgo_t,
            attr: cublasLtMatmulAlgoConfigAttributes_t,
            buf: *mut ::std::os::raw::c_void,
            sizeInBytes: usize,
            sizeWritten: *mut usize,
        ) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtLoggerSetCallback: Result<
        unsafe extern "C" fn(callback: cublasLtLoggerCallback_t) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtLoggerOpenFile: Result<
        unsafe extern "C" fn(logFile: *const ::std::os::raw::c_char) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtLoggerSetLevel: Result<
        unsafe extern "C" fn(level: ::std::os::raw::c_int) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtLoggerSetMask: Result<
        unsafe extern "C" fn(mask: ::std::os::raw::c_int) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtLoggerForceDisable: Result<
        unsafe extern "C" fn() -> cublasStatus_t,
        ::libloading::Error,
    >,
}
impl CublasLt {
    pub unsafe fn new<P>(path: P) -> Result<Self, ::libloading::Error>
    where
        P: AsRef<::std::ffi::OsStr>,
    {
        let path = path.as_ref();
        let library = unsafe { ::libloading::Library::new(path) }?;
        unsafe { Self::from_library(library) }
    }
    pub unsafe fn from_library<L>(library: L) -> Result<Self, ::libloading::Error>
    where
        L: Into<::libloading::Library>,
    {
        let __library = library.into();
        let cublasLtCreate = unsafe { __library.get(b"cublasLtCreate\0") }
            .map(|sym| *sym);
        let cublasLtDestroy = unsafe { __library.get(b"cublasLtDestroy\0") }
            .map(|sym| *sym);
        let cublasLtGetStatusName = unsafe { __library.get(b"cublasLtGetStatusName\0") }
            .map(|sym| *sym);
        let cublasLtGetStatusString = unsafe {
            __library.get(b"cublasLtGetStatusString\0")
        }
            .map(|sym| *sym);
        let cublasLtGetVersion = unsafe { __library.get(b"cublasLtGetVersion\0") }
            .map(|sym| *sym);
        let cublasLtGetCudartVersion = unsafe {
            __library.get(b"cublasLtGetCudartVersion\0")
        }
            .map(|sym| *sym);
        let cublasLtGetProperty = unsafe { __library.get(b"cublasLtGetProperty\0") }
            .map(|sym| *sym);
        let cublasLtHeuristicsCacheGetCapacity = unsafe {
            __library.get(b"cublasLtHeuristicsCacheGetCapacity\0")
        }
            .map(|sym| *sym);
        let cublasLtHeuristicsCacheSetCapacity = unsafe {
            __library.get(b"cublasLtHeuristicsCacheSetCapacity\0")
        }
            .map(|sym| *sym);
        let cublasLtMatmul = unsafe { __library.get(b"cublasLtMatmul\0") }
            .map(|sym| *sym);
        let cublasLtMatrixTransform = unsafe {
            __library.get(b"cublasLtMatrixTransform\0")
        }
            .map(|sym| *sym);
        let cublasLtMatrixLayoutInit_internal = unsafe {
            __library.get(b"cublasLtMatrixLayoutInit_internal\0")
        }
            .map(|sym| *sym);
        let cublasLtGroupedMatrixLayoutInit_internal = unsafe {
            __library.get(b"cublasLtGroupedMatrixLayoutInit_internal\0")
        }
            .map(|sym| *sym);
        let cublasLtMatrixLayoutCreate = unsafe {
            __library.get(b"cublasLtMatrixLayoutCreate\0")
        }
            .map(|sym| *sym);
        let cublasLtGroupedMatrixLayoutCreate = unsafe {
            __library.get(b"cublasLtGroupedMatrixLayoutCreate\0")
        }
            .map(|sym| *sym);
        let cublasLtMatrixLayoutDestroy = unsafe {
            __library.get(b"cublasLtMatrixLayoutDestroy\0")
        }
            .map(|sym| *sym);
        let cublasLtMatrixLayoutSetAttribute = unsafe {
            __library.get(b"cublasLtMatrixLayoutSetAttribute\0")
        }
            .map(|sym| *sym);
        let cublasLtMatrixLayoutGetAttribute = unsafe {
            __library.get(b"cublasLtMatrixLayoutGetAttribute\0")
        }
            .map(|sym| *sym);
        let cublasLtMatmulDescInit_internal = unsafe {
            __library.get(b"cublasLtMatmulDescInit_internal\0")
        }
            .map(|sym| *sym);
        let cublasLtMatmulDescCreate = unsafe {
            __library.get(b"cublasLtMatmulDescCreate\0")
        }
            .map(|sym| *sym);
        let cublasLtMatmulDescDestroy = unsafe {
            __library.get(b"cublasLtMatmulDescDestroy\0")
        }
            .map(|sym| *sym);
        let cublasLtMatmulDescSetAttribute = unsafe {
            __library.get(b"cublasLtMatmulDescSetAttribute\0")
        }
            .map(|sym| *sym);
        let cublasLtMatmulDescGetAttribute = unsafe {
            __library.get(b"cublasLtMatmulDescGetAttribute\0")
        }
            .map(|sym| *sym);
        let cublasLtMatrixTransformDescInit_internal = unsafe {
            __library.get(b"cublasLtMatrixTransformDescInit_internal\0")
        }
            .map(|sym| *sym);
        let cublasLtMatrixTransformDescCreate = unsafe {
            __library.get(b"cublasLtMatrixTransformDescCreate\0")
        }
            .map(|sym| *sym);
        let cublasLtMatrixTransformDescDestroy = unsafe {
            __library.get(b"cublasLtMatrixTransformDescDestroy\0")
        }
            .map(|sym| *sym);
        let cublasLtMatrixTransformDescSetAttribute = unsafe {
            __library.get(b"cublasLtMatrixTransformDescSetAttribute\0")
        }
            .map(|sym| *sym);
        let cublasLtMatrixTransformDescGetAttribute = unsafe {
            __library.get(b"cublasLtMatrixTransformDescGetAttribute\0")
        }
            .map(|sym| *sym);
        let cublasLtEmulationDescInit_internal = unsafe {
            __library.get(b"cublasLtEmulationDescInit_internal\0")
        }
            .map(|sym| *sym);
        let cublasLtEmulationDescCreate = unsafe {
            __library.get(b"cublasLtEmulationDescCreate\0")
        }
            .map(|sym| *sym);
        let cublasLtEmulationDescDestroy = unsafe {
            __library.get(b"cublasLtEmulationDescDestroy\0")
        }
            .map(|sym| *sym);
        let cublasLtEmulationDescSetAttribute = unsafe {
            __library.get(b"cublasLtEmulationDescSetAttribute\0")
        }
            .map(|sym| *sym);
        let cublasLtEmulationDescGetAttribute = unsafe {
            __library.get(b"cublasLtEmulationDescGetAttribute\0")
        }
            .map(|sym| *sym);
        let cublasLtMatmulPreferenceInit_internal = unsafe {
            __library.get(b"cublasLtMatmulPreferenceInit_internal\0")
        }
            .map(|sym| *sym);
        let cublasLtMatmulPreferenceCreate = unsafe {
            __library.get(b"cublasLtMatmulPreferenceCreate\0")
        }
            .map(|sym| *sym);
        let cublasLtMatmulPreferenceDestroy = unsafe {
            __library.get(b"cublasLtMatmulPreferenceDestroy\0")
        }
            .map(|sym| *sym);
        let cublasLtMatmulPreferenceSetAttribute = unsafe {
            __library.get(b"cublasLtMatmulPreferenceSetAttribute\0")
        }
            .map(|sym| *sym);
        let cublasLtMatmulPreferenceGetAttribute = unsafe {
            __library.get(b"cublasLtMatmulPreferenceGetAttribute\0")
        }
            .map(|sym| *sym);
        let cublasLtMatmulAlgoGetHeuristic = unsafe {
            __library.get(b"cublasLtMatmulAlgoGetHeuristic\0")
        }
            .map(|sym| *sym);
        let cublasLtMatmulAlgoGetHeuristicForStream = unsafe {
            __library.get(b"cublasLtMatmulAlgoGetHeuristicForStream\0")
        }
            .map(|sym| *sym);
        let cublasLtMatmulAlgoGetIds = unsafe {
            __library.get(b"cublasLtMatmulAlgoGetIds\0")
        }
            .map(|sym| *sym);
        let cublasLtMatmulAlgoInit = unsafe {
            __library.get(b"cublasLtMatmulAlgoInit\0")
        }
            .map(|sym| *sym);
        let cublasLtMatmulAlgoCheck = unsafe {
            __library.get(b"cublasLtMatmulAlgoCheck\0")
        }
            .map(|sym| *sym);
        let cublasLtMatmulAlgoCheckForStream = unsafe {
            __library.get(b"cublasLtMatmulAlgoCheckForStream\0")
        }
            .map(|sym| *sym);
        let cublasLtMatmulAlgoCapGetAttribute = unsafe {
            __library.get(b"cublasLtMatmulAlgoCapGetAttribute\0")
        }
            .map(|sym| *sym);
        let cublasLtMatmulAlgoConfigSetAttribute = unsafe {
            __library.get(b"cublasLtMatmulAlgoConfigSetAttribute\0")
        }
            .map(|sym| *sym);
        let cublasLtMatmulAlgoConfigGetAttribute = unsafe {
            __library.get(b"cublasLtMatmulAlgoConfigGetAttribute\0")
        }
            .map(|sym| *sym);
        let cublasLtLoggerSetCallback = unsafe {
            __library.get(b"cublasLtLoggerSetCallback\0")
        }
            .map(|sym| *sym);
        let cublasLtLoggerOpenFile = unsafe {
            __library.get(b"cublasLtLoggerOpenFile\0")
        }
            .map(|sym| *sym);
        let cublasLtLoggerSetLevel = unsafe {
            __library.get(b"cublasLtLoggerSetLevel\0")
        }
            .map(|sym| *sym);
        let cublasLtLoggerSetMask = unsafe { __library.get(b"cublasLtLoggerSetMask\0") }
            .map(|sym| *sym);
        let cublasLtLoggerForceDisable = unsafe {
            __library.get(b"cublasLtLoggerForceDisable\0")
        }
            .map(|sym| *sym);
        Ok(CublasLt {
            __library,
            cublasLtCreate,
            cublasLtDestroy,
            cublasLtGetStatusName,
            cublasLtGetStatusString,
            cublasLtGetVersion,
            cublasLtGetCudartVersion,
            cublasLtGetProperty,
            cublasLtHeuristicsCacheGetCapacity,
            cublasLtHeuristicsCacheSetCapacity,
            cublasLtMatmul,
            cublasLtMatrixTransform,
            cublasLtMatrixLayoutInit_internal,
            cublasLtGroupedMatrixLayoutInit_internal,
            cublasLtMatrixLayoutCreate,
            cublasLtGroupedMatrixLayoutCreate,
            cublasLtMatrixLayoutDestroy,
            cublasLtMatrixLayoutSetAttribute,
            cublasLtMatrixLayoutGetAttribute,
            cublasLtMatmulDescInit_internal,
            cublasLtMatmulDescCreate,
            cublasLtMatmulDescDestroy,
            cublasLtMatmulDescSetAttribute,
            cublasLtMatmulDescGetAttribute,
            cublasLtMatrixTransformDescInit_internal,
            cublasLtMatrixTransformDescCreate,
            cublasLtMatrixTransformDescDestroy,
            cublasLtMatrixTransformDescSetAttribute,
            cublasLtMatrixTransformDescGetAttribute,
            cublasLtEmulationDescInit_internal,
            cublasLtEmulationDescCreate,
            cublasLtEmulationDescDestroy,
            cublasLtEmulationDescSetAttribute,
            cublasLtEmulationDescGetAttribute,
            cublasLtMatmulPreferenceInit_internal,
            cublasLtMatmulPreferenceCreate,
            cublasLtMatmulPreferenceDestroy,
            cublasLtMatmulPreferenceSetAttribute,
            cublasLtMatmulPreferenceGetAttribute,
            cublasLtMatmulAlgoGetHeuristic,
            cublasLtMatmulAlgoGetHeuristicForStream,
            cublasLtMatmulAlgoGetIds,
            cublasLtMatmulAlgoInit,
            cublasLtMatmulAlgoCheck,
            cublasLtMatmulAlgoCheckForStream,
            cublasLtMatmulAlgoCapGetAttribute,
            cublasLtMatmulAlgoConfigSetAttribute,
            cublasLtMatmulAlgoConfigGetAttribute,
            cublasLtLoggerSetCallback,
            cublasLtLoggerOpenFile,
            cublasLtLoggerSetLevel,
            cublasLtLoggerSetMask,
            cublasLtLoggerForceDisable,
        })
    }
    pub unsafe fn cublasLtCreate(
        &self,
        lightHandle: *mut cublasLtHandle_t,
    ) -> Result<cublasStatus_t, &::libloading::Error> {
        Ok(unsafe { (self.cublasLtCreate.as_ref()?)(lightHandle) })
    }
    pub unsafe fn cublasLtDestroy(
        &self,
        lightHandle: cublasLtHandle_t,
    ) -> Result<cublasStatus_t, &::libloading::Error> {
        Ok(unsafe { (self.cublasLtDestroy.as_ref()?)(lightHandle) })
    }
    pub unsafe fn cublasLtGetStatusName(
        &self,
        status: cublasStatus_t,
    ) -> Result<*const ::std::os::raw::c_char, &::libloading::Error> {
        Ok(unsafe { (self.cublasLtGetStatusName.as_ref()?)(status) })
    }
    pub unsafe fn cublasLtGetStatusString(
        &self,
        status: cublasStatus_t,
    ) -> Result<*const ::std::os::raw::c_char, &::libloading::Error> {
        Ok(unsafe { (self.cublasLtGetStatusString.as_ref()?)(status) })
    }
    pub unsafe fn cublasLtGetVersion(&self) -> Result<usize, &::libloading::Error> {
        Ok(unsafe { (self.cublasLtGetVersion.as_ref()?)() })
    }
    pub unsafe fn cublasLtGetCudartVersion(
        &self,
    ) -> Result<usize, &::libloading::Error> {
        Ok(unsafe { (self.cublasLtGetCudartVersion.as_ref()?)() })
    }
    pub unsafe fn cublasLtGetProperty(
        &self,
        type_: libraryPropertyType,
        value: *mut ::std::os::raw::c_int,
    ) -> Result<cublasStatus_t, &::libloading::Error> {
        Ok(unsafe { (self.cublasLtGetProperty.as_ref()?)(type_, value) })
    }
    pub unsafe fn cublasLtHeuristicsCacheGetCapacity(
        &self,
        capacity: *mut usize,
    ) -> Result<cublasStatus_t, &::libloading::Error> {
        Ok(unsafe { (self.cublasLtHeuristicsCacheGetCapacity.as_ref()?)(capacity) })
    }
    pub unsafe fn cublasLtHeuristicsCacheSetCapacity(
        &self,
        capacity: usize,
    ) -> Result<cublasStatus_t, &::libloading::Error> {
        Ok(unsafe { (self.cublasLtHeuristicsCacheSetCapacity.as_ref()?)(capacity) })
    }
    pub unsafe fn cublasLtMatmul(
        &self,
        lightHandle: cublasLtHandle_t,
        computeDesc: cublasLtMatmulDesc_t,
        alpha: *const ::std::os::raw::c_void,
        A: *const ::std::os::raw::c_void,
        Adesc: cublasLtMatrixLayout_t,
        B: *const ::std::os::raw::c_void,
        Bdesc: cublasLtMatrixLayout_t,
        beta: *const ::std::os::raw::c_void,
        C: *const ::std::os::raw::c_void,
        Cdesc: cublasLtMatrixLayout_t,
        D: *mut ::std::os::raw::c_void,
        Ddesc: cublasLtMatrixLayout_t,
        algo: *const cublasLtMatmulAlgo_t,
        workspace: *mut ::std::os::raw::c_void,
        workspaceSizeInBytes: usize,
        stream: cudaStream_t,
    ) -> Result<cublasStatus_t, &::libloading::Error> {
        Ok(unsafe {
            (self
                .cublasLtMatmul
                .as_ref()?)(
                lightHandle,
                computeDesc,
                alpha,
                A,
                Adesc,
                B,
                Bdesc,
                beta,
                C,
                Cdesc,
                D,
                Ddesc,
                algo,
                workspace,
                workspaceSizeInBytes,
                stream,
            )
        })
    }
    pub unsafe fn cublasLtMatrixTransform(
        &self,
        lightHandle: cublasLtHandle_t,
        transformDesc: cublasLtMatrixTransformDesc_t,
        alpha: *const ::std::os::raw::c_void,
        A: *const ::std::os::raw::c_void,
        Adesc: cublasLtMatrixLayout_t,
        beta: *const ::std::os::raw::c_void,
        B: *const ::std::os::raw::c_void,
        Bdesc: cublasLtMatrixLayout_t,
        C: *mut ::std::os::raw::c_void,
        Cdesc: cublasLtMatrixLayout_t,
        stream: cudaStream_t,
    ) -> Result<cublasStatus_t, &::libloading::Error> {
        Ok(unsafe {
            (self
                .cublasLtMatrixTransform
                .as_ref()?)(
                lightHandle,
                transformDesc,
                alpha,
                A,
                Adesc,
                beta,
                B,
                Bdesc,
                C,
                Cdesc,
                stream,
            )
        })
    }
    pub unsafe fn cublasLtMatrixLayoutInit_internal(
        &self,
        matLayout: cublasLtMatrixLayout_t,
        size: usize,
        type_: cudaDataType,
        rows: u64,
        cols: u64,
        ld: i64,
    ) -> Result<cublasStatus_t, &::libloading::Error> {
        Ok(unsafe {
            (self
                .cublasLtMatrixLayoutInit_internal
                .as_ref()?)(matLayout, size, type_, rows, cols, ld)
        })
    }
    pub unsafe fn cublasLtGroupedMatrixLayoutInit_internal(
        &self,
        matLayout: cublasLtMatrixLayout_t,
        size: usize,
        type_: cudaDataType,
        groupCount: ::std::os::raw::c_int,
        rows_array: *const ::std::os::raw::c_void,
        cols_array: *const ::std::os::raw::c_void,
        ld_array: *const ::std::os::raw::c_void,
    ) -> Result<cublasStatus_t, &::libloading::Error> {
        Ok(unsafe {
            (self
                .cublasLtGroupedMatrixLayoutInit_internal
                .as_ref()?)(
                matLayout,
                size,
                type_,
                groupCount,
                rows_array,
                cols_array,
                ld_array,
            )
        })
    }
    pub unsafe fn cublasLtMatrixLayoutCreate(
        &self,
        matLayout: *mut cublasLtMatrixLayout_t,
        type_: cudaDataType,
        rows: u64,
        cols: u64,
        ld: i64,
    ) -> Result<cublasStatus_t, &::libloading::Error> {
        Ok(unsafe {
            (self.cublasLtMatrixLayoutCreate.as_ref()?)(matLayout, type_, rows, cols, ld)
        })
    }
    pub unsafe fn cublasLtGroupedMatrixLayoutCreate(
        &self,
        matLayout: *mut cublasLtMatrixLayout_t,
        type_: cudaDataType,
        groupCount: ::std::os::raw::c_int,
        rows_array: *const ::std::os::raw::c_void,
        cols_array: *const ::std::os::raw::c_void,
        ld_array: *const ::std::os::raw::c_void,
    ) -> Result<cublasStatus_t, &::libloading::Error> {
        Ok(unsafe {
            (self
                .cublasLtGroupedMatrixLayoutCreate
                .as_ref()?)(
                matLayout,
                type_,
                groupCount,
                rows_array,
                cols_array,
                ld_array,
            )
        })
    }
    pub unsafe fn cublasLtMatrixLayoutDestroy(
        &self,
        matLayout: cublasLtMatrixLayout_t,
    ) -> Result<cublasStatus_t, &::libloading::Error> {
        Ok(unsafe { (self.cublasLtMatrixLayoutDestroy.as_ref()?)(matLayout) })
    }
    pub unsafe fn cublasLtMatrixLayoutSetAttribute(
        &self,
        matLayout: cublasLtMatrixLayout_t,
        attr: cublasLtMatrixLayoutAttribute_t,
        buf: *const ::std::os::raw::c_void,
        sizeInBytes: usize,
    ) -> Result<cublasStatus_t, &::libloading::Error> {
        Ok(unsafe {
            (self
                .cublasLtMatrixLayoutSetAttribute
                .as_ref()?)(matLayout, attr, buf, sizeInBytes)
        })
    }
    pub unsafe fn cublasLtMatrixLayoutGetAttribute(
        &self,
        matLayout: cublasLtMatrixLayout_t,
        attr: cublasLtMatrixLayoutAttribute_t,
        buf: *mut ::std::os::raw::c_void,
        sizeInBytes: usize,
        sizeWritten: *mut usize,
    ) -> Result<cublasStatus_t, &::libloading::Error> {
        Ok(unsafe {
            (self
                .cublasLtMatrixLayoutGetAttribute
                .as_ref()?)(matLayout, attr, buf, sizeInBytes, sizeWritten)
        })
    }
    pub unsafe fn cublasLtMatmulDescInit_internal(
        &self,
        matmulDesc: cublasLtMatmulDesc_t,
        size: usize,
        computeType: cublasComputeType_t,
        scaleType: cudaDataType_t,
    ) -> Result<cublasStatus_t, &::libloading::Error> {
        Ok(unsafe {
            (self
                .cublasLtMatmulDescInit_internal
                .as_ref()?)(matmulDesc, size, computeType, scaleType)
        })
    }
    pub unsafe fn cublasLtMatmulDescCreate(
        &self,
        matmulDesc: *mut cublasLtMatmulDesc_t,
        computeType: cublasComputeType_t,
        scaleType: cudaDataType_t,
    ) -> Result<cublasStatus_t, &::libloading::Error> {
        Ok(unsafe {
            (self.cublasLtMatmulDescCreate.as_ref()?)(matmulDesc, computeType, scaleType)
        })
    }
    pub unsafe fn cublasLtMatmulDescDestroy(
        &self,
        matmulDesc: cublasLtMatmulDesc_t,
    ) -> Result<cublasStatus_t, &::libloading::Error> {
        Ok(unsafe { (self.cublasLtMatmulDescDestroy.as_ref()?)(matmulDesc) })
    }
    pub unsafe fn cublasLtMatmulDescSetAttribute(
        &self,
        matmulDesc: cublasLtMatmulDesc_t,
        attr: cublasLtMatmulDescAttributes_t,
        buf: *const ::std::os::raw::c_void,
        sizeInBytes: usize,
    ) -> Result<cublasStatus_t, &::libloading::Error> {
        Ok(unsafe {
            (self
                .cublasLtMatmulDescSetAttribute
                .as_ref()?)(matmulDesc, attr, buf, sizeInBytes)
        })
    }
    pub unsafe fn cublasLtMatmulDescGetAttribute(
        &self,
        matmulDesc: cublasLtMatmulDesc_t,
        attr: cublasLtMatmulDescAttributes_t,
        buf: *mut ::std::os::raw::c_void,
        sizeInBytes: usize,
        sizeWritten: *mut usize,
    ) -> Result<cublasStatus_t, &::libloading::Error> {
        Ok(unsafe {
            (self
                .cublasLtMatmulDescGetAttribute
                .as_ref()?)(matmulDesc, attr, buf, sizeInBytes, sizeWritten)
        })
    }
    pub unsafe fn cublasLtMatrixTransformDescInit_internal(
        &self,
        transformDesc: cublasLtMatrixTransformDesc_t,
        size: usize,
        scaleType: cudaDataType,
    ) -> Result<cublasStatus_t, &::libloading::Error> {
        Ok(unsafe {
            (self
                .cublasLtMatrixTransformDescInit_internal
                .as_ref()?)(transformDesc, size, scaleType)
        })
    }
    pub unsafe fn cublasLtMatrixTransformDescCreate(
        &self,
        transformDesc: *mut cublasLtMatrixTransformDesc_t,
        scaleType: cudaDataType,
    ) -> Result<cublasStatus_t, &::libloading::Error> {
        Ok(unsafe {
            (self.cublasLtMatrixTransformDescCreate.as_ref()?)(transformDesc, scaleType)
        })
    }
    pub unsafe fn cublasLtMatrixTransformDescDestroy(
        &self,
        transformDesc: cublasLtMatrixTransformDesc_t,
    ) -> Result<cublasStatus_t, &::libloading::Error> {
        Ok(unsafe { (self.cublasLtMatrixTransformDescDestroy.as_ref()?)(transformDesc) })
    }
    pub unsafe fn cublasLtMatrixTransformDescSetAttribute(
        &self,
        transformDesc: cublasLtMatrixTransformDesc_t,
        attr: cublasLtMatrixTransformDescAttributes_t,
        buf: *const ::std::os::raw::c_void,
        sizeInBytes: usize,
    ) -> Result<cublasStatus_t, &::libloading::Error> {
        Ok(unsafe {
            (self
                .cublasLtMatrixTransformDescSetAttribute
                .as_ref()?)(transformDesc, attr, buf, sizeInBytes)
        })
    }
    pub unsafe fn cublasLtMatrixTransformDescGetAttribute(
        &self,
        transformDesc: cublasLtMatrixTransformDesc_t,
        attr: cublasLtMatrixTransformDescAttributes_t,
        buf: *mut ::std::os::raw::c_void,
        sizeInBytes: usize,
        sizeWritten: *mut usize,
    ) -> Result<cublasStatus_t, &::libloading::Error> {
        Ok(unsafe {
            (self
                .cublasLtMatrixTransformDescGetAttribute
                .as_ref()?)(transformDesc, attr, buf, sizeInBytes, sizeWritten)
        })
    }
    pub unsafe fn cublasLtEmulationDescInit_internal(
        &self,
        emulationDesc: cublasLtEmulationDesc_t,
        size: usize,
    ) -> Result<cublasStatus_t, &::libloading::Error> {
        Ok(unsafe {
            (self.cublasLtEmulationDescInit_internal.as_ref()?)(emulationDesc, size)
        })
    }
    pub unsafe fn cublasLtEmulationDescCreate(
        &self,
        emulationDesc: *mut cublasLtEmulationDesc_t,
    ) -> Result<cublasStatus_t, &::libloading::Error> {
        Ok(unsafe { (self.cublasLtEmulationDescCreate.as_ref()?)(emulationDesc) })
    }
    pub unsafe fn cublasLtEmulationDescDestroy(
        &self,
        emulationDesc: cublasLtEmulationDesc_t,
    ) -> Result<cublasStatus_t, &::libloading::Error> {
        Ok(unsafe { (self.cublasLtEmulationDescDestroy.as_ref()?)(emulationDesc) })
    }
    pub unsafe fn cublasLtEmulationDescSetAttribute(
        &self,
        emulationDesc: cublasLtEmulationDesc_t,
        attr: cublasLtEmulationDescAttributes_t,
        buf: *const ::std::os::raw::c_void,
        sizeInBytes: usize,
    ) -> Result<cublasStatus_t, &::libloading::Error> {
        Ok(unsafe {
            (self
                .cublasLtEmulationDescSetAttribute
                .as_ref()?)(emulationDesc, attr, buf, sizeInBytes)
        })
    }
    pub unsafe fn cublasLtEmulationDescGetAttribute(
        &self,
        emulationDesc: cublasLtEmulationDesc_t,
        attr: cublasLtEmulationDescAttributes_t,
        buf: *mut ::std::os::raw::c_void,
        sizeInBytes: usize,
        sizeWritten: *mut usize,
    ) -> Result<cublasStatus_t, &::libloading::Error> {
        Ok(unsafe {
            (self
                .cublasLtEmulationDescGetAttribute
                .as_ref()?)(emulationDesc, attr, buf, sizeInBytes, sizeWritten)
        })
    }
    pub unsafe fn cublasLtMatmulPreferenceInit_internal(
        &self,
        pref: cublasLtMatmulPreference_t,
        size: usize,
    ) -> Result<cublasStatus_t, &::libloading::Error> {
        Ok(unsafe { (self.cublasLtMatmulPreferenceInit_internal.as_ref()?)(pref, size) })
    }
    pub unsafe fn cublasLtMatmulPreferenceCreate(
        &self,
        pref: *mut cublasLtMatmulPreference_t,
    ) -> Result<cublasStatus_t, &::libloading::Error> {
        Ok(unsafe { (self.cublasLtMatmulPreferenceCreate.as_ref()?)(pref) })
    }
    pub unsafe fn cublasLtMatmulPreferenceDestroy(
        &self,
        pref: cublasLtMatmulPreference_t,
    ) -> Result<cublasStatus_t, &::libloading::Error> {
        Ok(unsafe { (self.cublasLtMatmulPreferenceDestroy.as_ref()?)(pref) })
    }
    pub unsafe fn cublasLtMatmulPreferenceSetAttribute(
        &self,
        pref: cublasLtMatmulPreference_t,
        attr: cublasLtMatmulPreferenceAttributes_t,
        buf: *const ::std::os::raw::c_void,
        sizeInBytes: usize,
    ) -> Result<cublasStatus_t, &::libloading::Error> {
        Ok(unsafe {
            (self
                .cublasLtMatmulPreferenceSetAttribute
                .as_ref()?)(pref, attr, buf, sizeInBytes)
        })
    }
    pub unsafe fn cublasLtMatmulPreferenceGetAttribute(
        &self,
        pref: cublasLtMatmulPreference_t,
        attr: cublasLtMatmulPreferenceAttributes_t,
        buf: *mut ::std::os::raw::c_void,
        sizeInBytes: usize,
        sizeWritten: *mut usize,
    ) -> Result<cublasStatus_t, &::libloading::Error> {
        Ok(unsafe {
            (self
                .cublasLtMatmulPreferenceGetAttribute
                .as_ref()?)(pref, attr, buf, sizeInBytes, sizeWritten)
        })
    }
    pub unsafe fn cublasLtMatmulAlgoGetHeuristic(
        &self,
        lightHandle: cublasLtHandle_t,
        operationDesc: cublasLtMatmulDesc_t,
        Adesc: cublasLtMatrixLayout_t,
        Bdesc: cublasLtMatrixLayout_t,
        Cdesc: cublasLtMatrixLayout_t,
        Ddesc: cublasLtMatrixLayout_t,
        preference: cublasLtMatmulPreference_t,
        requestedAlgoCount: ::std::os::raw::c_int,
        heuristicResultsArray: *mut cublasLtMatmulHeuristicResult_t,
        returnAlgoCount: *mut ::std::os::raw::c_int,
    ) -> Result<cublasStatus_t, &::libloading::Error> {
        Ok(unsafe {
            (self
                .cublasLtMatmulAlgoGetHeuristic
                .as_ref()?)(
                lightHandle,
                operationDesc,
                Adesc,
                Bdesc,
                Cdesc,
                Ddesc,
                preference,
                requestedAlgoCount,
                heuristicResultsArray,
                returnAlgoCount,
            )
        })
    }
    pub unsafe fn cublasLtMatmulAlgoGetHeuristicForStream(
        &self,
        lightHandle: cublasLtHandle_t,
        operationDesc: cublasLtMatmulDesc_t,
        Adesc: cublasLtMatrixLayout_t,
        Bdesc: cublasLtMatrixLayout_t,
        Cdesc: cublasLtMatrixLayout_t,
        Ddesc: cublasLtMatrixLayout_t,
        preference: cublasLtMatmulPreference_t,
        requestedAlgoCount: ::std::os::raw::c_int,
        heuristicResultsArray: *mut cublasLtMatmulHeuristicResult_t,
        returnAlgoCount: *mut ::std::os::raw::c_int,
        stream: cudaStream_t,
    ) -> Result<cublasStatus_t, &::libloading::Error> {
        Ok(unsafe {
            (self
                .cublasLtMatmulAlgoGetHeuristicForStream
                .as_ref()?)(
                lightHandle,
                operationDesc,
                Adesc,
                Bdesc,
                Cdesc,
                Ddesc,
                preference,
                requestedAlgoCount,
                heuristicResultsArray,
                returnAlgoCount,
                stream,
            )
        })
    }
    pub unsafe fn cublasLtMatmulAlgoGetIds(
        &self,
        lightHandle: cublasLtHandle_t,
        computeType: cublasComputeType_t,
        scaleType: cudaDataType_t,
        Atype: cudaDataType_t,
        Btype: cudaDataType_t,
        Ctype: cudaDataType_t,
        Dtype: cudaDataType_t,
        requestedAlgoCount: ::std::os::raw::c_int,
        algoIdsArray: *mut ::std::os::raw::c_int,
        returnAlgoCount: *mut ::std::os::raw::c_int,
    ) -> Result<cublasStatus_t, &::libloading::Error> {
        Ok(unsafe {
            (self
                .cublasLtMatmulAlgoGetIds
                .as_ref()?)(
                lightHandle,
                computeType,
                scaleType,
                Atype,
                Btype,
                Ctype,
                Dtype,
                requestedAlgoCount,
                algoIdsArray,
                returnAlgoCount,
            )
        })
    }
    pub unsafe fn cublasLtMatmulAlgoInit(
        &self,
        lightHandle: cublasLtHandle_t,
        computeType: cublasComputeType_t,
        scaleType: cudaDataType_t,
        Atype: cudaDataType_t,
        Btype: cudaDataType_t,
        Ctype: cudaDataType_t,
        Dtype: cudaDataType_t,
        algoId: ::std::os::raw::c_int,
        algo: *mut cublasLtMatmulAlgo_t,
    ) -> Result<cublasStatus_t, &::libloading::Error> {
        Ok(unsafe {
            (self
                .cublasLtMatmulAlgoInit
                .as_ref()?)(
                lightHandle,
                computeType,
                scaleType,
                Atype,
                Btype,
                Ctype,
                Dtype,
                algoId,
                algo,
            )
        })
    }
    pub unsafe fn cublasLtMatmulAlgoCheck(
        &self,
        lightHandle: cublasLtHandle_t,
        operationDesc: cublasLtMatmulDesc_t,
        Adesc: cublasLtMatrixLayout_t,
        Bdesc: cublasLtMatrixLayout_t,
        Cdesc: cublasLtMatrixLayout_t,
        Ddesc: cublasLtMatrixLayout_t,
        algo: *const cublasLtMatmulAlgo_t,
        result: *mut cublasLtMatmulHeuristicResult_t,
    ) -> Result<cublasStatus_t, &::libloading::Error> {
        Ok(unsafe {
            (self
                .cublasLtMatmulAlgoCheck
                .as_ref()?)(
                lightHandle,
                operationDesc,
                Adesc,
                Bdesc,
                Cdesc,
                Ddesc,
                algo,
                result,
            )
        })
    }
    pub unsafe fn cublasLtMatmulAlgoCheckForStream(
        &self,
        lightHandle: cublasLtHandle_t,
        operationDesc: cublasLtMatmulDesc_t,
        Adesc: cublasLtMatrixLayout_t,
        Bdesc: cublasLtMatrixLayout_t,
        Cdesc: cublasLtMatrixLayout_t,
        Ddesc: cublasLtMatrixLayout_t,
        algo: *const cublasLtMatmulAlgo_t,
        result: *mut cublasLtMatmulHeuristicResult_t,
        stream: cudaStream_t,
    ) -> Result<cublasStatus_t, &::libloading::Error> {
        Ok(unsafe {
            (self
                .cublasLtMatmulAlgoCheckForStream
                .as_ref()?)(
                lightHandle,
                operationDesc,
                Adesc,
                Bdesc,
                Cdesc,
                Ddesc,
                algo,
                result,
                stream,
            )
        })
    }
    pub unsafe fn cublasLtMatmulAlgoCapGetAttribute(
        &self,
        algo: *const cublasLtMatmulAlgo_t,
        attr: cublasLtMatmulAlgoCapAttributes_t,
        buf: *mut ::std::os::raw::c_void,
        sizeInBytes: usize,
        sizeWritten: *mut usize,
    ) -> Result<cublasStatus_t, &::libloading::Error> {
        Ok(unsafe {
            (self
                .cublasLtMatmulAlgoCapGetAttribute
                .as_ref()?)(algo, attr, buf, sizeInBytes, sizeWritten)
        })
    }
    pub unsafe fn cublasLtMatmulAlgoConfigSetAttribute(
        &self,
        algo: *mut cublasLtMatmulAlgo_t,
        attr: cublasLtMatmulAlgoConfigAttributes_t,
        buf: *const ::std::os::raw::c_void,
        sizeInBytes: usize,
    ) -> Result<cublasStatus_t, &::libloading::Error> {
        Ok(unsafe {
            (self
                .cublasLtMatmulAlgoConfigSetAttribute
                .as_ref()?)(algo, attr, buf, sizeInBytes)
        })
    }
    pub unsafe fn cublasLtMatmulAlgoConfigGetAttribute(
        &self,
        algo: *const cublasLtMatmulAlgo_t,
        attr: cublasLtMatmulAlgoConfigAttributes_t,
        buf: *mut ::std::os::raw::c_void,
        sizeInBytes: usize,
        sizeWritten: *mut usize,
    ) -> Result<cublasStatus_t, &::libloading::Error> {
        Ok(unsafe {
            (self
                .cublasLtMatmulAlgoConfigGetAttribute
                .as_ref()?)(algo, attr, buf, sizeInBytes, sizeWritten)
        })
    }
    pub unsafe fn cublasLtLoggerSetCallback(
        &self,
        callback: cublasLtLoggerCallback_t,
    ) -> Result<cublasStatus_t, &::libloading::Error> {
        Ok(unsafe { (self.cublasLtLoggerSetCallback.as_ref()?)(callback) })
    }
    pub unsafe fn cublasLtLoggerOpenFile(
        &self,
        logFile: *const ::std::os::raw::c_char,
    ) -> Result<cublasStatus_t, &::libloading::Error> {
        Ok(unsafe { (self.cublasLtLoggerOpenFile.as_ref()?)(logFile) })
    }
    pub unsafe fn cublasLtLoggerSetLevel(
        &self,
        level: ::std::os::raw::c_int,
    ) -> Result<cublasStatus_t, &::libloading::Error> {
        Ok(unsafe { (self.cublasLtLoggerSetLevel.as_ref()?)(level) })
    }
    pub unsafe fn cublasLtLoggerSetMask(
        &self,
        mask: ::std::os::raw::c_int,
    ) -> Result<cublasStatus_t, &::libloading::Error> {
        Ok(unsafe { (self.cublasLtLoggerSetMask.as_ref()?)(mask) })
    }
    pub unsafe fn cublasLtLoggerForceDisable(
        &self,
    ) -> Result<cublasStatus_t, &::libloading::Error> {
        Ok(unsafe { (self.cublasLtLoggerForceDisable.as_ref()?)() })
    }
}
