// The one table of kernel files. build.rs (what nvcc compiles, and for which GPUs) and src/gpu/kernels/image.rs (what the
// library loads) both include it, each behind a macro `kernel_files!` of its own.
//
// A family is loaded as a whole when the first of its kernels is used. The file's path below kernels/ has no `.cu`. The GPUs that
// can run it are compute capabilities, major * 10 + minor: nvcc compiles it for those alone, and the library refuses others.
kernel_files! {
    // family, file, GPUs
    Fp8, "cast/fp8_tensor", 80..=u32::MAX;
    Fp8, "cast/fp8_tensor_once", 80..=u32::MAX;
    Fp8, "cast/fp8_row", 80..=u32::MAX;
    Fp8, "cast/fp8_group", 80..=u32::MAX;
    Grouped, "cast/grouped", 80..=u32::MAX;
    Grouped, "cast/grouped_turns", 80..=u32::MAX;
    Grouped, "cast/grouped_tile", 80..=u32::MAX;
    Grouped, "cast/grouped_gradient", 80..=u32::MAX;
    Grouped, "cast/grouped_between", 80..=u32::MAX;
    Grouped, "cast/grouped_delayed", 80..=u32::MAX;
    Grouped, "gemm/grouped_arrays", 80..=u32::MAX;
    Cast, "cast/cast_rows", 80..=u32::MAX;
    Cast, "cast/cast_tile", 80..=u32::MAX;
    Cast, "cast/cast_back", 80..=u32::MAX;
    Fused, "fused/produced", 80..=u32::MAX;
    Fused, "fused/swiglu_backward", 80..=u32::MAX;
    Fused, "fused/swiglu_backward_mx", 80..=u32::MAX;
    Fused, "fused/rms_norm", 80..=u32::MAX;
    Fused, "fused/produced_tensor", 80..=u32::MAX;
    Fused, "fused/produced_mx", 80..=u32::MAX;
    Fused, "fused/produced_nvfp4", 80..=u32::MAX;
    Nvfp4, "cast/nvfp4", 80..=u32::MAX;
    Nvfp4, "cast/nvfp4_tile", 80..=u32::MAX;
    Nvfp4, "cast/nvfp4_repack", 80..=u32::MAX;
    Mxfp8, "cast/mxfp8", 80..=u32::MAX;
    Mxfp4, "cast/mxfp4", 80..=u32::MAX;
    Linear, "linear/gradient", 80..=u32::MAX;
    Linear, "linear/bias_gradient", 80..=u32::MAX;
    Linear, "linear/delayed_update", 80..=u32::MAX;
    Linear, "linear/to_bf16", 80..=u32::MAX;
    Epilogue, "gemm/epilogue", 80..=u32::MAX;
    Sm90, "gemm/sm90_block", 90..=90;
    Sm90, "gemm/sm90_vector", 90..=90;
    Sm90, "gemm/sm90_plain", 90..=90;
    Sm90, "gemm/sm90_outer_plain", 90..=90;
    Sm90, "gemm/sm90_outer_fp32", 90..=90;
    Sm90, "gemm/sm90_vector_fp32", 90..=90;
    Sm90, "gemm/sm90_block_a", 90..=90;
    Sm90, "gemm/sm90_outer", 90..=90;
    Sm90, "gemm/sm90_cast", 90..=90;
    Sm90E5m2, "gemm/sm90_e5m2_a", 90..=90;
    Sm90E5m2, "gemm/sm90_e5m2_b", 90..=90;
    SmallM, "gemm/small_m_fp8", 90..=90;
    SmallM, "gemm/small_m_gated", 90..=90;
    SmallM, "gemm/small_m_wgmma", 90..=90;
    SmallM, "gemm/small_m_one_row", 90..=90;
    SmallMWeights, "gemm/small_m_e2m1", 80..=u32::MAX;
    SmallMWeights, "gemm/small_m_repacked", 80..=u32::MAX;
    SmallMWeights, "gemm/small_m_e4m3", 80..=u32::MAX;
    SmallMWeights, "gemm/small_m_join", 80..=u32::MAX;
    SmallMGroups, "gemm/small_m_groups_e2m1", 90..=90;
    SmallMGroups, "gemm/small_m_groups_e4m3", 90..=90;
    SmallMGroups, "gemm/small_m_groups_wgmma", 90..=90;
}
