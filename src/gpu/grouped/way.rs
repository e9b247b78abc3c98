//! [`Way`]: how the products of groups are made, by their [`GroupedGemmDesc`], and why.

use super::library::{self, LibraryProduct, LibraryScales};
use super::{GroupedGemmDesc, few, slots};
use crate::error::{Error, Result};
use crate::format::{DType, Operand, Scheme, pair};
use crate::gpu::device::info::DeviceInfo;
use crate::gpu::gemm::available::HOPPER;
use crate::gpu::gemm::our_pairs::{Sm90Pair, grouped_pair};
use crate::gpu::gemm::plan::GemmPlan;
use crate::gpu::gemm::sm90_rules;
use crate::gpu::handle::Handle;
use crate::gpu::kernels::{
    KernelFamily, Sm90Along, Sm90Call, Sm90Config, Sm90Scales, SmallMGroupsConfig, SmallMWeights, SmallMWeightsCall,
};
use crate::gpu::lt::grouped_versions;

/// Of rows with block scales in slots: up to so many of a group a launch that decodes weights is faster than a product a slot, which reads and writes them as numbers (H100, 2026-11, the record of groups by warpgroup
/// products, 8 slots of `nvfp4` x 4096 x 7168: 210 us for 422 at best at 128 rows each, 425 for 472 at 256, 1651 for 799 at 1024; E4M3 weights were not measured since they are multiplied so).
const MOST_DECODED_ROWS: usize = 128;

/// How groups are multiplied.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Way {
    /// One launch of our kernels for sm_90, which read codes and scales so.
    Launch(Sm90Pair, Sm90Config),
    /// One launch of those that decode such weights, with rows of this type, as which those of a quantized A are dequantized before.
    FewRows(SmallMWeights, SmallMGroupsConfig, DType),
    /// One product a slot, and why not the other.
    Slots(String),
    /// cuBLASLt's own product of groups, which reads scales so.
    Library(LibraryScales),
}

/// What a way has made before its calls.
pub(super) enum Made {
    Nothing,
    /// The plan of a slot's product; `None` without slots.
    Slot(Option<Box<GemmPlan>>),
    Library(Box<LibraryProduct>),
}

impl Way {
    /// What it needs beside the plan of a slot's product: loads kernels, and reserves scratch memory.
    pub(super) fn make_ready(&self, handle: &Handle, desc: &GroupedGemmDesc) -> Result<()> {
        if desc.clamped {
            handle.load_kernels(&[KernelFamily::Grouped])?;
        }
        match self {
            Self::Launch(pair, _) => handle.load_kernels(&[pair.kernels()]),
            Self::FewRows(_, config, _) => {
                few::Needs::of_groups(desc.a, [desc.rows, desc.k], *config).make_ready(handle)
            }
            Self::Slots(_) => Ok(()),
            Self::Library(_) => library::make_ready(handle, desc),
        }
    }

    /// What it plans or asks for: of products of slots a plan, of cuBLASLt's own an algorithm.
    pub(super) fn make(&self, handle: &Handle, desc: &GroupedGemmDesc) -> Result<Made> {
        match (self, desc.a) {
            (Self::Launch(..) | Self::FewRows(..), _) => Ok(Made::Nothing),
            (Self::Slots(_), _) => slots::plan(handle, desc).map(|plan| Made::Slot(plan.map(Box::new))),
            (Self::Library(scales), Operand::Quantized(a)) => {
                LibraryProduct::ask(handle, desc, a, *scales).map(|product| Made::Library(Box::new(product)))
            }
            (Self::Library(_), Operand::Plain(_)) => Err(slots::of_plain_a()),
        }
    }

    /// Rows that a group begins at a multiple of.
    pub(super) fn step(&self) -> usize {
        match self {
            Self::Library(scales) => scales.step(),
            Self::Launch(..) | Self::FewRows(..) | Self::Slots(_) => Sm90Along::Rows.step(),
        }
    }

    /// Bytes of the handle's scratch memory that a call uses.
    pub(super) fn scratch_bytes(&self, desc: &GroupedGemmDesc, made: &Made) -> usize {
        match (self, made) {
            (Self::FewRows(_, config, _), _) => {
                few::Needs::of_groups(desc.a, [desc.rows, desc.k], *config).scratch_bytes()
            }
            (Self::Slots(_), Made::Slot(Some(plan))) => slots::scratch_bytes(desc, plan),
            (Self::Library(_), _) => library::scratch_bytes(desc),
            (Self::Launch(..) | Self::Slots(_), _) => 0,
        }
    }

    /// In words, with what it costs in memory.
    pub(super) fn explain(&self, handle: &Handle, desc: &GroupedGemmDesc, made: &Made) -> String {
        let why_not_the_librarys = library::why_not(desc, handle.device(), handle.lt_version());
        match self {
            Self::Launch(_, config) => format!(
                "{desc}\n  one launch of {config}, on the handle's stream, by groups that the device knows; no scratch memory; empty groups take no time\n  because our kernels for sm_90 serve this pair; {why_not_the_librarys}"
            ),
            Self::FewRows(_, config, dtype) => {
                let scratch = match self.scratch_bytes(desc, made) {
                    0 => "no scratch memory".to_string(),
                    bytes => format!("{bytes} bytes of scratch memory"),
                };
                let (before, because) = match desc.a {
                    Operand::Plain(_) => (scratch, "A is plain: weights are decoded"),
                    Operand::Quantized(_) => (
                        format!("behind a launch that dequantizes all of A to {dtype}, {scratch} in all"),
                        "both sides have block scales, which this GPU's tensor cores do not read: weights are decoded",
                    ),
                };
                format!(
                    "{desc}\n  one launch of small-m, {config}, on the handle's stream, by groups that the device knows; {before}; matrices of groups without rows are not read\n  because {because}; {why_not_the_librarys}"
                )
            }
            Self::Slots(reason) => {
                let of_slot = if let Made::Slot(plan) = made { plan.as_deref() } else { None };
                let slots::Explained { how, plan } = slots::explain(desc, of_slot);
                format!(
                    "{desc}\n  one product a slot, {} of them {how}, each of all rows of a slot: counts are not read, since conditional nodes of graphs, which could skip a planned product's launches, are not used, and empty groups take as long\n  because {reason}; {why_not_the_librarys}\n{plan}",
                    desc.groups
                )
            }
            Self::Library(_) => match made {
                Made::Library(product) => product.explain(desc),
                Made::Nothing | Made::Slot(_) => format!("{desc}\n  cuBLASLt's own product of groups"),
            },
        }
    }
}

impl GroupedGemmDesc {
    /// Which way the products go on this GPU.
    ///
    /// # Errors
    /// Those of [`GroupedGemmDesc::check`], and [`Error::Pair`] and [`Error::Unsupported`] for what no way takes.
    pub(super) fn way(&self, device: &DeviceInfo) -> Result<Way> {
        self.check()?;
        match self.a {
            Operand::Plain(a) => {
                let weights = few::served(device, a, self.b, self.b_order)?;
                self.few_rows(weights, a)
            }
            Operand::Quantized(a) => self.way_of_quantized(device, a),
        }
    }

    fn way_of_quantized(&self, device: &DeviceInfo, a: Scheme) -> Result<Way> {
        let &Self { b, config, .. } = self;
        let (major, minor) = device.compute_capability;
        if self.by_cublaslt {
            pair::check_pair(a, b, &device.to_string())?;
            return library::served(self, a, device).map(Way::Library);
        }
        let reason = match grouped_pair(a, b) {
            Ok(_) if self.product_a_slot => "it is asked for".to_string(),
            Ok(pair) if (major, minor) == HOPPER => {
                config.map_or(Ok(()), |config| pair.check_groups(Sm90Along::Rows, config))?;
                Sm90Call::check_shape([self.rows, self.n, self.k], self.groups, [self.groups, 1])?;
                Sm90Call::check_d_stride(self.n, self.out_stride, self.out)?;
                return Ok(Way::Launch(pair, self.chosen(pair, device.sm_count as usize)));
            }
            Ok(_) => format!("the grouped product is for sm_90, and this GPU is sm_{major}{minor}"),
            Err(reason) => format!("the grouped product is ours for sm_90: {reason}"),
        };
        // A pair that nobody multiplies has a reason of its own.
        pair::check_pair(a, b, &device.to_string())?;
        if config.is_some() {
            return Err(Error::unsupported(
                format!("a configuration of sm90 for groups of {a} x {b}"),
                reason,
                "leave it out",
            ));
        }
        let in_slots = slots::why_not(self, a);
        if let Some((weights, dtype)) = few::served_quantized(device, a, (b, self.b_order), self.out, self.k)
            && !self.product_a_slot
            && (in_slots.is_some() || self.usual_rows() <= MOST_DECODED_ROWS)
        {
            return self.few_rows(weights, dtype);
        }
        match in_slots {
            None => {
                slots::check(self, device)?;
                Ok(Way::Slots(reason))
            }
            Some(why) if self.product_a_slot => Err(Error::unsupported(
                format!("one product a slot of {a} x {b}"),
                why,
                "leave product_a_slot out where one launch takes them",
            )),
            Some(why) => Err(Error::Pair {
                a: Operand::Quantized(a),
                b,
                device: device.to_string(),
                reason: format!("{reason}; {why}"),
                remedy: format!(
                    "{}multiply the groups one by one with Handle::scaled_gemm, of a pair that Handle::supports offers on this GPU",
                    self.by_the_library(device)
                ),
            }),
        }
    }

    /// The remedy that cuBLASLt's own product is, where it would take these; else nothing. Without a handle nobody knows its version.
    fn by_the_library(&self, device: &DeviceInfo) -> String {
        let asked = self.with_by_cublaslt(true);
        match grouped_versions(device.compute_capability) {
            Some(versions) if asked.way(device).is_ok() => format!(
                "ask for cuBLASLt's own product of groups (by_cublaslt), which this GPU has in versions {versions}; or "
            ),
            _ => String::new(),
        }
    }

    fn few_rows(&self, weights: SmallMWeights, dtype: DType) -> Result<Way> {
        let config = few::config(weights, self.usual_rows(), [self.rows, self.k])?;
        config.check_shape(weights, [self.rows, self.n, self.k], Some(self.groups), false)?;
        SmallMWeightsCall::check_a_stride(self.a_stride, self.k)?;
        Ok(Way::FewRows(weights, config, dtype))
    }

    /// The configuration asked for, or the one that should be fastest.
    fn chosen(&self, pair: Sm90Pair, sm_count: usize) -> Sm90Config {
        let mnk = [self.usual_rows(), self.n, self.k];
        let has_kernels = |config: &Sm90Config| pair.has_groups(Sm90Along::Rows, *config);
        // As `sm90_store_rows` has it.
        let boxed = pair.scales == Sm90Scales::Blocks && self.out != DType::F32;
        self.config.unwrap_or_else(|| sm90_rules::first_of_groups(boxed, self.groups, mnk, sm_count, has_kernels))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::format::{CodeOrder, Fp8Format};
    use crate::gpu::kernels::SmallMGroupsConfig;

    const F: Fp8Format = Fp8Format::E4M3;
    const VEC: Scheme = Scheme::Fp8Group1x128(F);
    const BLK: Scheme = Scheme::Fp8Group128x128(F);
    const BF16: Operand = Operand::Plain(DType::Bf16);

    pub(in crate::gpu::grouped) fn gpu(compute_capability: (u32, u32)) -> DeviceInfo {
        DeviceInfo {
            ordinal: 0,
            name: "a GPU".to_string(),
            compute_capability,
            sm_count: 132,
            l2_bytes: 50 << 20,
            memory_bytes: 80 << 30,
            driver: 13000,
        }
    }

    fn slots(slot_rows: usize, a: impl Into<Operand>, b: Scheme) -> GroupedGemmDesc {
        GroupedGemmDesc::slots(8, slot_rows, 4096, 7168, a, b, DType::Bf16)
    }

    fn contiguous(a: impl Into<Operand>, b: Scheme) -> GroupedGemmDesc {
        GroupedGemmDesc::contiguous(8, 1024, 4096, 7168, a, b, DType::Bf16)
    }

    /// Shapes and types alone decide, of slots of block scales also how many rows a group usually has.
    #[test]
    fn the_problem_decides_the_way() {
        let hopper = gpu((9, 0));
        let way = |desc: GroupedGemmDesc| desc.way(&hopper).unwrap();
        let is_one_launch = |desc: GroupedGemmDesc| match way(desc) {
            Way::Launch(pair, config) => pair.has_groups(Sm90Along::Rows, config),
            Way::FewRows(..) | Way::Slots(_) | Way::Library(_) => false,
        };
        for (a, b) in [(VEC, BLK), (VEC, VEC), (Scheme::Fp8Row(F), Scheme::Fp8Row(F))] {
            assert!(is_one_launch(contiguous(a, b)) && is_one_launch(slots(4, a, b)), "{a} x {b}");
        }
        let asked = slots(128, VEC, BLK).with_config(Sm90Config::Tile64x128);
        assert!(matches!(way(asked), Way::Launch(_, Sm90Config::Tile64x128)));
        let few = |desc: GroupedGemmDesc| match way(desc) {
            Way::FewRows(weights, config, dtype) => Some((weights, config, dtype)),
            Way::Launch(..) | Way::Slots(_) | Way::Library(_) => None,
        };
        let of = |weights: SmallMWeights, rows, dtype| {
            Some((weights, SmallMGroupsConfig::of(weights.operands(), rows, [1024, 7168]).unwrap(), dtype))
        };
        let nvfp4 = Scheme::Nvfp4;
        assert_eq!(few(contiguous(BF16, nvfp4)), of(SmallMWeights::Nvfp4, 128, DType::Bf16));
        assert_eq!(few(slots(4, BF16, nvfp4)), of(SmallMWeights::Nvfp4, 4, DType::Bf16));
        let repacked = slots(4, BF16, nvfp4).with_b_order(CodeOrder::Repacked).with_expected_rows(1);
        assert_eq!(few(repacked), of(SmallMWeights::Nvfp4Repacked, 1, DType::Bf16));
        let mxfp8 = Scheme::Mxfp8(F);
        assert_eq!(few(slots(128, mxfp8, mxfp8)), of(SmallMWeights::Mxfp8, 128, DType::Bf16));
        assert_eq!(few(contiguous(mxfp8, mxfp8).with_expected_rows(1024)), of(SmallMWeights::Mxfp8, 1024, DType::Bf16));
        // Of more than a few rows A is arranged, and rows with block scales are dequantized before.
        let scratch = |desc: GroupedGemmDesc| way(desc).scratch_bytes(&desc, &Made::Nothing);
        assert_eq!([scratch(contiguous(VEC, BLK)), scratch(slots(4, BF16, nvfp4))], [0; 2]);
        let desc = slots(128, mxfp8, mxfp8);
        assert_eq!(scratch(desc), desc.rows * desc.k * 4);
        assert_eq!(scratch(desc.with_expected_rows(16)), desc.rows * desc.k * 2);
        assert_eq!(scratch(contiguous(BF16, nvfp4)), 1024 * 7168 * 2);
        let narrow = GroupedGemmDesc { out: DType::F16, ..contiguous(nvfp4, nvfp4) };
        assert_eq!(few(narrow), of(SmallMWeights::Nvfp4, 128, DType::F16));

        let words = |desc: GroupedGemmDesc, device: &DeviceInfo| match desc.way(device).unwrap() {
            Way::Slots(reason) => reason,
            other => panic!("{desc}: {other:?}"),
        };
        assert!(words(slots(256, mxfp8, mxfp8), &hopper).contains("ours for sm_90"));
        assert!(words(slots(128, nvfp4, nvfp4).with_product_a_slot(true), &hopper).contains("ours for sm_90"));
        let tensor = Scheme::Fp8Tensor(F);
        assert_eq!(way(contiguous(tensor, tensor).with_by_cublaslt(true)), Way::Library(LibraryScales::One));
        assert!(is_one_launch(contiguous(tensor, tensor)));
        let rows = Scheme::Fp8Row(F);
        assert_eq!(words(slots(128, rows, rows).with_product_a_slot(true), &hopper), "it is asked for");
        assert!(words(slots(128, rows, rows), &gpu((8, 9))).contains("for sm_90, and this GPU is sm_89"));
    }

    fn refused(desc: GroupedGemmDesc, device: &DeviceInfo, words: &[&str]) {
        let text = desc.way(device).map(|way| format!("{desc}: {way:?}")).unwrap_err().to_string();
        words.iter().for_each(|word| assert!(text.contains(word), "{text:?} lacks {word:?}"));
    }

    #[test]
    fn what_no_way_takes_is_refused_before_there_are_operands() {
        let nvfp4 = Scheme::Nvfp4;
        let rows = Scheme::Fp8Row(F);
        let shaped = |n, k| GroupedGemmDesc::contiguous(8, 1024, n, k, VEC, BLK, DType::Bf16);
        let tensor = Scheme::Fp8Tensor(F);
        let hopper: [(GroupedGemmDesc, &[&str]); 22] = [
            (slots(128, BLK, VEC), &["fp8-128x128:e4m3 x fp8-1x128:e4m3", "lie by columns", "one by one"]),
            (slots(132, Scheme::Mxfp8(F), Scheme::Mxfp8(Fp8Format::E5M2)), &["slots of 132 rows", "multiple of 128"]),
            (contiguous(Scheme::Mxfp8(F), Scheme::Mxfp8(Fp8Format::E5M2)), &["the device alone knows", "slots"]),
            (contiguous(nvfp4, nvfp4).with_product_a_slot(true), &["one product a slot of nvfp4 x nvfp4", "leave"]),
            (slots(4, BF16, nvfp4).with_product_a_slot(true), &["one product a slot of a plain A"]),
            (slots(4, BF16, nvfp4).with_config(Sm90Config::Tile128x128), &["configuration of sm90", "leave it out"]),
            (slots(256, nvfp4, nvfp4).with_config(Sm90Config::Tile128x128), &["configuration of sm90 for groups of"]),
            (
                slots(128, rows, rows).with_config(Sm90Config::Tile128x128).with_product_a_slot(true),
                &["with one product a slot", "leave one of the two out"],
            ),
            (contiguous(VEC, BLK).with_scales_of_groups([true, false]), &["a scale for each group", "fp8-tensor"]),
            (slots(256, nvfp4, nvfp4).with_streams(9), &["9 streams", "1 to 8"]),
            (
                contiguous(VEC, BLK).with_by_cublaslt(true),
                &["cuBLASLt's own product of groups of fp8-1x128", "do not lie together", "leave by_cublaslt out"],
            ),
            (slots(4, BF16, nvfp4).with_by_cublaslt(true), &["with a plain A", "leave one of the two out"]),
            (
                contiguous(tensor, tensor).with_by_cublaslt(true).with_config(Sm90Config::Tile128x128),
                &["with the configuration", "leave one of the two out"],
            ),
            (
                slots(128, tensor, tensor).with_by_cublaslt(true).with_product_a_slot(true),
                &["with one product a slot", "leave one of the two out"],
            ),
            (contiguous(tensor, tensor).with_by_cublaslt(true).with_streams(2), &["with 2 streams"]),
            (slots(30, VEC, BLK), &["8 slots of 30", "multiple of 4"]),
            (shaped(136, 256), &["D: 1024 x 136", "multiple of 128"]),
            (shaped(128, 72), &["k = 72", "multiple of 16"]),
            (GroupedGemmDesc { k: 80, ..contiguous(BF16, nvfp4) }, &["k = 80", "multiple of 32"]),
            (GroupedGemmDesc { groups: 1 << 31, n: 0, ..contiguous(VEC, BLK) }, &["fewer than 2^31 groups"]),
            (
                GroupedGemmDesc { rows: usize::MAX, ..contiguous(BF16, nvfp4) },
                &["rows = 18446744073709551615", "at most 2147483135"],
            ),
            (GroupedGemmDesc { out: DType::E4M3, ..contiguous(VEC, BLK) }, &["e4m3", "is not bf16, f16 or f32"]),
        ];
        hopper.into_iter().for_each(|(desc, words)| refused(desc, &gpu((9, 0)), words));
        refused(contiguous(VEC, VEC), &gpu((8, 0)), &["this GPU is sm_80", "the device alone knows"]);
        refused(slots(4, BF16, nvfp4), &gpu((8, 0)), &["bf16 x nvfp4", "are for sm_90, and this GPU is sm_80"]);
    }

    /// Where cuBLASLt's own product takes what no way does, the error says so, with the versions that are called on that GPU.
    #[test]
    fn the_librarys_product_is_a_remedy_where_it_takes_the_groups() {
        let one_by_one = "multiply the groups one by one";
        let remedy = |desc: GroupedGemmDesc, cc| match desc.way(&gpu(cc)) {
            Err(Error::Pair { remedy, .. }) => remedy,
            other => panic!("{desc}: {other:?}"),
        };
        let (tensor, e5m2) = (Scheme::Fp8Tensor(F), Scheme::Fp8Tensor(Fp8Format::E5M2));
        let (mxfp8, nvfp4) = (Scheme::Mxfp8(F), Scheme::Nvfp4);
        for cc in [(10, 0), (10, 3), (11, 0)] {
            for desc in [
                contiguous(tensor, tensor),
                slots(132, tensor, e5m2).with_scales_of_groups([true, true]),
                contiguous(mxfp8, mxfp8),
                contiguous(nvfp4, nvfp4),
            ] {
                let text = remedy(desc, cc);
                let begins = "ask for cuBLASLt's own product of groups (by_cublaslt), which this GPU has in versions from 13.2.0 to before 13.4.0, ";
                assert!(text.starts_with(begins) && text.contains(one_by_one), "{desc}: {text}");
            }
        }
        // Of other GPUs, pairs, shapes and choices it is none.
        for (desc, cc) in [
            (contiguous(tensor, tensor), (8, 9)),
            (contiguous(tensor, tensor), (12, 0)),
            (contiguous(VEC, VEC), (10, 0)),
            (contiguous(tensor, tensor).with_bias(DType::F32), (10, 0)),
            (slots(132, mxfp8, mxfp8), (10, 0)),
            (contiguous(mxfp8, Scheme::Mxfp8(Fp8Format::E5M2)), (9, 0)),
        ] {
            assert!(remedy(desc, cc).starts_with(one_by_one), "{desc}: {}", remedy(desc, cc));
        }
    }

    /// What launches, plans and operands would refuse at every call.
    #[test]
    fn strides_and_sizes_that_no_call_takes_are_refused_before_there_are_operands() {
        let (nvfp4, most) = (Scheme::Nvfp4, (1 << 31) - 1024);
        let shaped =
            |groups, rows, n, k, a: Operand, b| GroupedGemmDesc::contiguous(groups, rows, n, k, a, b, DType::Bf16);
        let sm90 = |groups, rows, n, k| shaped(groups, rows, n, k, VEC.into(), BLK);
        let few = |groups, rows, n| shaped(groups, rows, n, 128, BF16, nvfp4);
        let in_slots = slots(128, nvfp4, nvfp4).with_product_a_slot(true);
        let largest = sm90((1 << 31) - 1, most, most, most);
        let limits = "the rows of B and D and the tiles of 64 x 32 of all groups must be below 2^31; split";
        let cases: [(GroupedGemmDesc, &[&str]); 19] = [
            (largest, &["fp8-1x128:e4m3 matrix: 2147482624 x 2147482624", "larger than the address space"]),
            (largest.with_expected_rows(most), &["fp8-1x128:e4m3 matrix", "larger than the address space"]),
            (sm90(1 << 21, 1 << 10, 1 << 10, 128), &["m = 1024, n = 1024, k = 128, 2097152 groups", limits]),
            (sm90(1 << 20, 1 << 22, 1 << 10, 128).with_expected_rows(4), &["1048576 groups", limits]),
            (few(8, (1 << 30) + 4, 128), &["m = 1073741828, n = 128", "rows of A and of B at most 2^30", "pad"]),
            (few(1 << 24, 1024, 128), &["m = 1024, n = 128", "rows of A and of B at most 2^30"]),
            (few(1, 1 << 29, 1 << 13), &["m = 536870912, n = 8192", "parts of D must be fewer than 2^28", "split"]),
            (contiguous(VEC, BLK).with_out_stride(4088), &["D: row stride 4088 for 4096 columns", "at least"]),
            (contiguous(BF16, nvfp4).with_out_stride(4095), &["D: row stride 4095 for 4096 columns", "at least"]),
            (in_slots.with_out_stride(4088), &["D: row stride 4088 for 4096 columns", "at least"]),
            (
                contiguous(VEC, BLK).with_out_stride(4100),
                &["D: row stride 4100 (bf16) for n = 4096", "multiple of 16 bytes", "pad the rows of D"],
            ),
            (in_slots.with_out_stride(4100), &["D: row stride 4100 for n = 4096 (bf16)", "16 bytes", "multiple of 8"]),
            (in_slots.with_out_stride(1 << 29), &["row stride of D = 2147483648", "at most 2147483135", "split"]),
            (contiguous(VEC, BLK).with_out_stride(1 << 60), &["D: 1024 x 4096 bf16", "overflow the address space"]),
            (contiguous(BF16, nvfp4).with_a_stride(7160), &["A: row stride 7160 for 7168 columns", "at least"]),
            (contiguous(BF16, nvfp4).with_a_stride(1 << 60), &["A: 1024 x 7168 bf16", "overflow the address space"]),
            (
                contiguous(BF16, nvfp4).with_a_stride(7172),
                &["A: row stride 7172 for k = 7168", "no shorter than a row, and a multiple of 8", "or copy"],
            ),
            (
                contiguous(VEC, BLK).with_a_stride(7184),
                &["A: row stride 7184 for k = 7168", "fp8-1x128:e4m3", "packed"],
            ),
            (in_slots.with_a_stride(7184), &["A: row stride 7184 for k = 7168", "nvfp4 matrix are packed", "plain A"]),
        ];
        cases.into_iter().for_each(|(desc, words)| refused(desc, &gpu((9, 0)), words));
        // What they take is taken.
        for desc in [
            contiguous(VEC, BLK).with_out_stride(4104),
            in_slots.with_out_stride(4104),
            contiguous(BF16, nvfp4).with_out_stride(4097).with_a_stride(7176),
            GroupedGemmDesc { groups: 0, ..in_slots.with_out_stride(4100) },
            sm90(1 << 10, 1 << 20, 1 << 10, 1 << 14).with_expected_rows(most),
            few(1 << 10, 1 << 30, 128),
        ] {
            desc.way(&gpu((9, 0))).unwrap_or_else(|error| panic!("{desc}: {error}"));
        }
    }
}
