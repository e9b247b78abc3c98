//! What can be tested of cuBLASLt with its library but without a GPU: values, sizes, gates, refusals.

use cublaslt_sys::{
    cublasLtEpilogue_t, cublasLtMatmulMatrixScale_t as Scale, cublasLtMatrixLayoutAttribute_t as Layout,
    cublasLtPointerMode_t, cublasLtReductionScheme_t as Scheme,
};

use super::*;
use crate::gpu::lt::quirks::{BLOCK_SCALES, SCALE_MODE_ATTRIBUTES};

impl MatmulDesc {
    /// What the library holds.
    pub(crate) fn get<A: Attribute>(&self, _: A) -> Result<A::Raw> {
        self.get_raw(A::ID, A::NAME)
    }

    /// The device address that the library holds.
    pub(crate) fn held(&self, pointer: PointerAttr) -> Result<u64> {
        self.get_raw(pointer_id(pointer), pointer.words())
    }

    fn get_raw<T: Plain>(&self, id: Desc, name: &str) -> Result<T> {
        let (mut value, mut written) = (T::default(), 0);
        let (target, size) = ((&raw mut value).cast(), size_of::<T>());
        // SAFETY: the library writes at most `size` bytes to `value`, and every bit pattern is a T.
        let answer =
            unsafe { self.library.api.cublasLtMatmulDescGetAttribute(self.raw, id, target, size, &mut written) };
        check("cublasLtMatmulDescGetAttribute", answer, || format!("attribute {name}, {written} of {size} bytes"))?;
        Ok(value)
    }
}

impl MatrixLayout {
    /// Element type, rows, columns and leading dimension, as the library holds them.
    pub(crate) fn held(&self) -> Result<(u32, u64, u64, u64)> {
        Ok((
            self.get_raw(Layout::CUBLASLT_MATRIX_LAYOUT_TYPE)?,
            self.get_raw(Layout::CUBLASLT_MATRIX_LAYOUT_ROWS)?,
            self.get_raw(Layout::CUBLASLT_MATRIX_LAYOUT_COLS)?,
            self.get_raw(Layout::CUBLASLT_MATRIX_LAYOUT_LD)?,
        ))
    }

    /// Bytes from the first to the last element.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    fn get_raw<T: Plain>(&self, id: Layout) -> Result<T> {
        let (mut value, mut written) = (T::default(), 0);
        let (target, size) = ((&raw mut value).cast(), size_of::<T>());
        // SAFETY: the library writes at most `size` bytes to `value`, and every bit pattern is a T.
        let answer =
            unsafe { self.library.api.cublasLtMatrixLayoutGetAttribute(self.raw, id, target, size, &mut written) };
        check("cublasLtMatrixLayoutGetAttribute", answer, || format!("attribute {}, {written} of {size} bytes", id.0))?;
        Ok(value)
    }
}

/// The library; `None`, with the reason printed, where there is none and none is required.
pub(crate) fn found() -> Option<&'static Library> {
    match library() {
        Ok(library) => Some(library),
        Err(error) => {
            let is_required = std::env::var("SCALED_GEMM_REQUIRE_CUBLASLT").is_ok_and(|value| value == "1");
            assert!(!is_required, "SCALED_GEMM_REQUIRE_CUBLASLT=1, but: {error}");
            eprintln!("skipped: {error}");
            None
        }
    }
}

#[test]
fn our_words_have_the_headers_numbers() {
    for (ours, header) in [
        (DataType::F32, cudaDataType_t::CUDA_R_32F),
        (DataType::F16, cudaDataType_t::CUDA_R_16F),
        (DataType::Bf16, cudaDataType_t::CUDA_R_16BF),
        (DataType::E4m3, cudaDataType_t::CUDA_R_8F_E4M3),
        (DataType::E5m2, cudaDataType_t::CUDA_R_8F_E5M2),
        (DataType::E2m1, cudaDataType_t::CUDA_R_4F_E2M1),
    ] {
        assert_eq!(ours as u32, header.0);
    }
    assert_eq!(Compute::F32 as u32, cublasComputeType_t::CUBLAS_COMPUTE_32F.0);
    for (ours, header) in [
        (EpilogueKind::Default, cublasLtEpilogue_t::CUBLASLT_EPILOGUE_DEFAULT),
        (EpilogueKind::Relu, cublasLtEpilogue_t::CUBLASLT_EPILOGUE_RELU),
        (EpilogueKind::Bias, cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS),
        (EpilogueKind::ReluBias, cublasLtEpilogue_t::CUBLASLT_EPILOGUE_RELU_BIAS),
        (EpilogueKind::Gelu, cublasLtEpilogue_t::CUBLASLT_EPILOGUE_GELU),
        (EpilogueKind::GeluBias, cublasLtEpilogue_t::CUBLASLT_EPILOGUE_GELU_BIAS),
    ] {
        assert_eq!(ours as u32, header.0);
        assert_eq!(ours.has_bias(), ours as u32 & cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS.0 != 0);
    }
    for (ours, header) in [
        (ScaleMode::Scalar, Scale::CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F),
        (ScaleMode::Vector16Ue4m3, Scale::CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3),
        (ScaleMode::Vector32Ue8m0, Scale::CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0),
        (ScaleMode::OuterVector, Scale::CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F),
        (ScaleMode::Group1x128, Scale::CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F),
        (ScaleMode::Block128, Scale::CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F),
        (ScaleMode::EachGroup, Scale::CUBLASLT_MATMUL_MATRIX_SCALE_PER_BATCH_SCALAR_32F),
    ] {
        assert_eq!(ours as u32, header.0);
    }
    assert_eq!(PointerMode::Host as u32, cublasLtPointerMode_t::CUBLASLT_POINTER_MODE_HOST.0);
    assert_eq!(PointerMode::Device as u32, cublasLtPointerMode_t::CUBLASLT_POINTER_MODE_DEVICE.0);
    assert_eq!(Reduction::ComputeType as u32, Scheme::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE.0);
    for (ours, header) in [
        (Status::SUCCESS, cublasStatus_t::CUBLAS_STATUS_SUCCESS),
        (Status::NOT_INITIALIZED, cublasStatus_t::CUBLAS_STATUS_NOT_INITIALIZED),
        (Status::INVALID_VALUE, cublasStatus_t::CUBLAS_STATUS_INVALID_VALUE),
        (Status::ARCH_MISMATCH, cublasStatus_t::CUBLAS_STATUS_ARCH_MISMATCH),
        (Status::NOT_SUPPORTED, cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED),
    ] {
        assert_eq!(ours.0, header.0);
    }
}

#[test]
fn pointers_are_stored_in_the_order_of_all() {
    for (place, pointer) in PointerAttr::ALL.into_iter().enumerate() {
        assert_eq!(pointer as usize, place);
    }
}

#[test]
fn scale_lengths_are_the_documented_ones() {
    assert_eq!(ScaleMode::Scalar.bytes(576, 7168), 4);
    assert_eq!(ScaleMode::OuterVector.bytes(576, 7168), 4 * 576);
    assert_eq!(ScaleMode::Group1x128.bytes(576, 144), 4 * 2 * 576);
    // 144 columns are 2 blocks, padded to 4; 576 rows are 5 blocks.
    assert_eq!(ScaleMode::Block128.bytes(576, 144), 4 * 4 * 5);
    // 576 rows are 5 tiles of 128; 144 columns are 9 blocks of 16, padded to 12, or 5 of 32, padded to 8.
    assert_eq!(ScaleMode::Vector16Ue4m3.bytes(576, 144), 5 * 128 * 12);
    assert_eq!(ScaleMode::Vector32Ue8m0.bytes(576, 144), 5 * 128 * 8);
}

#[test]
fn old_versions_refuse_block_scales_and_imply_scalars() {
    let gate = |mode| <attr::AScaleMode as Attribute>::gate(mode);
    assert_eq!(gate(ScaleMode::Scalar), Gate::ImpliedBefore(SCALE_MODE_ATTRIBUTES));
    for mode in [ScaleMode::OuterVector, ScaleMode::Group1x128, ScaleMode::Block128] {
        assert_eq!(gate(mode), Gate::Since(BLOCK_SCALES));
    }
    for mode in [ScaleMode::Vector16Ue4m3, ScaleMode::Vector32Ue8m0] {
        assert_eq!(gate(mode), Gate::Since(SCALE_MODE_ATTRIBUTES));
    }
    assert_eq!(<attr::TransA as Attribute>::gate(Transpose::Yes), Gate::Always);
}

#[test]
fn the_library_is_shown_with_version_and_file() {
    let Some(library) = found() else { return };
    assert!(library.version() >= quirks::MINIMUM);
    assert!(!library.found_by().is_empty());
    if cfg!(target_os = "linux") {
        let path = library.path().expect("Linux tells the file");
        assert!(path.file_name().is_some_and(|name| name.to_string_lossy().contains("cublasLt")), "{path:?}");
    }
    // A second look finds the resident one.
    assert!(std::ptr::eq(library, super::library().expect("it is loaded")));
}

#[test]
fn attributes_come_back_as_they_were_set() -> Result<()> {
    let Some(library) = found() else { return Ok(()) };
    let mut desc = MatmulDesc::new(Compute::F32, DataType::F32)?;
    assert_eq!(desc.get(attr::Epilogue)?, EpilogueKind::Default as u32);
    desc.set(attr::TransA, Transpose::Yes)?;
    desc.set(attr::TransB, Transpose::No)?;
    assert_eq!((desc.get(attr::TransA)?, desc.get(attr::TransB)?), (1, 0));
    for epilogue in [EpilogueKind::Default, EpilogueKind::ReluBias, EpilogueKind::GeluBias] {
        desc.set(attr::Epilogue, epilogue)?;
        assert_eq!(desc.get(attr::Epilogue)?, epilogue as u32);
    }
    desc.set(attr::FastAccum, FastAccumulation::On)?;
    assert_eq!(desc.get(attr::FastAccum)?, 1u8);
    desc.set(attr::BiasDataType, DataType::Bf16)?;
    assert_eq!(desc.get(attr::BiasDataType)?, DataType::Bf16 as u32);
    desc.set(attr::AScaleMode, ScaleMode::Scalar)?;
    if library.version() >= BLOCK_SCALES {
        desc.set(attr::AScaleMode, ScaleMode::Block128)?;
        desc.set(attr::BScaleMode, ScaleMode::Group1x128)?;
        assert_eq!((desc.get(attr::AScaleMode)?, desc.get(attr::BScaleMode)?), (5, 4));
    }
    assert_eq!(desc.facts.transposes, [Transpose::Yes, Transpose::No]);
    assert_eq!((desc.facts.epilogue, desc.facts.bias), (EpilogueKind::GeluBias, Some(DataType::Bf16)));
    Ok(())
}

#[test]
fn pointers_are_set_and_cleared() -> Result<()> {
    let Some(_) = found() else { return Ok(()) };
    let mut desc = MatmulDesc::new(Compute::F32, DataType::F32)?;
    desc.expect_pointers(&[PointerAttr::AScale, PointerAttr::Bias], 0x1000)?;
    assert_eq!(desc.held(PointerAttr::AScale)?, 0x1000);
    assert_eq!(desc.held(PointerAttr::BScale)?, 0);
    desc.set_pointer(PointerAttr::AScale, 0x2000)?;
    assert_eq!(desc.held(PointerAttr::AScale)?, 0x2000);
    assert_eq!(desc.held(PointerAttr::Bias)?, 0x1000);
    desc.expect_pointers(&[PointerAttr::AmaxD], 0x3000)?;
    assert_eq!(desc.held(PointerAttr::AScale)?, 0);
    assert_eq!(desc.held(PointerAttr::AmaxD)?, 0x3000);
    Ok(())
}

#[test]
fn a_wrong_size_is_an_error_with_status_and_name() -> Result<()> {
    let Some(_) = found() else { return Ok(()) };
    let mut desc = MatmulDesc::new(Compute::F32, DataType::F32)?;
    let error = desc.set_raw(Desc::CUBLASLT_MATMUL_DESC_FAST_ACCUM, "FastAccum", 1u32).expect_err("it has one byte");
    assert!(matches!(error, Error::Cublas { status: 7, .. }), "{error}");
    assert!(error.to_string().contains("7 (CUBLAS_STATUS_INVALID_VALUE)"), "{error}");
    Ok(())
}

#[test]
fn layouts_know_their_bytes_and_refuse_nonsense() -> Result<()> {
    let Some(_) = found() else { return Ok(()) };
    let layout = MatrixLayout::new(DataType::Bf16, 100, 3, 128)?;
    assert_eq!(layout.bytes, 2 * (2 * 128 + 100));
    // Two E2M1 elements share a byte, and the leading dimension counts elements.
    let layout = MatrixLayout::new(DataType::E2m1, 96, 3, 96)?;
    assert_eq!((layout.bytes, layout.held()?), (3 * 48, (DataType::E2m1 as u32, 96, 3, 96)));
    for (rows, cols, ld) in [(0, 3, 128), (100, 0, 128), (100, 3, 99), (1, usize::MAX, usize::MAX)] {
        assert!(
            matches!(MatrixLayout::new(DataType::F32, rows, cols, ld), Err(Error::Shape { .. })),
            "{rows} {cols} {ld}"
        );
    }
    Ok(())
}

#[test]
fn layouts_must_fit_together() -> Result<()> {
    let Some(_) = found() else { return Ok(()) };
    let mut desc = MatmulDesc::new(Compute::F32, DataType::F32)?;
    desc.set(attr::TransA, Transpose::Yes)?;
    let layouts = Layouts {
        a: MatrixLayout::new(DataType::E4m3, 256, 64, 256)?,
        b: MatrixLayout::new(DataType::E4m3, 256, 32, 256)?,
        c: MatrixLayout::new(DataType::Bf16, 64, 32, 64)?,
        d: MatrixLayout::new(DataType::Bf16, 64, 32, 64)?,
    };
    assert_eq!(layouts.extents(&desc.facts)?, (64, 32, 256));
    desc.set(attr::TransB, Transpose::Yes)?;
    let error = layouts.extents(&desc.facts).expect_err("B is K x N already").to_string();
    assert!(error.contains("A E4m3 256 x 64 ld 256") && error.contains("M x K"), "{error}");
    assert_eq!(desc.pointer_bytes(PointerAttr::Bias, &layouts, 256), 2 * 64);
    Ok(())
}

#[test]
fn preferences_take_their_values() -> Result<()> {
    let Some(_) = found() else { return Ok(()) };
    let mut preference = Preference::new()?;
    preference.workspace_bytes(32 << 20)?;
    for operand in [Operand::A, Operand::B, Operand::C, Operand::D] {
        preference.alignment(operand, 16)?;
    }
    preference.reduction(Reduction::ComputeType)
}

#[test]
fn an_algorithm_survives_as_words() {
    let mut result = EMPTY;
    result.algo.data = [1, 2, 3, 4, 5, 6, 7, u64::MAX];
    result.workspaceSize = 64;
    let algo = Algo::offered(&result);
    assert_eq!(algo.workspace_bytes(), 64);
    let again = Algo::from_words(algo.to_words());
    assert_eq!(again.to_words(), result.algo.data);
    assert_eq!(again.opaque().data, result.algo.data);
    assert_eq!(again.workspace_bytes(), 0);
}

#[test]
fn no_driver_is_no_gpu() {
    let Some(library) = found() else { return };
    if keep_loaded(&Candidate::Name("libcuda.so.1".into()), &[]).is_ok() {
        eprintln!("skipped: this machine has a CUDA driver");
        return;
    }
    let Err(error) = handle::RawHandle::new(library) else { panic!("a handle without a driver") };
    assert!(matches!(error, Error::NoGpu { .. }) && error.to_string().contains("driver 580"), "{error}");
}

/// Each with an object of its own for the one context, as programs on cudarc have. (What was dropped with such an object was never used again.)
#[test]
fn handles_that_were_dropped_are_used_again() {
    use cudarc::driver::CudaContext;
    let driver = keep_loaded(&Candidate::Name("libcuda.so.1".into()), &[]).is_ok();
    if found().is_none() || !driver || !CudaContext::device_count().is_ok_and(|count| count > 0) {
        assert!(
            std::env::var_os("SCALED_GEMM_REQUIRE_GPU").is_none_or(|v| v != "1"),
            "SCALED_GEMM_REQUIRE_GPU=1, and no GPU or no cuBLASLt"
        );
        println!("skipped: no GPU, or no cuBLASLt");
        return;
    }
    // More than other threads' tests hold at once.
    let most = 256;
    let mut seen = std::collections::HashSet::new();
    for _ in 0..most {
        let context = CudaContext::new(0).unwrap();
        seen.insert(LtHandle::new(&context).unwrap().handle.raw as usize);
    }
    assert!(seen.len() < most, "each of {most} was made anew");
}
