//! [`SmallMProduct`]: the product step by our kernels for few rows. It needs no descriptors, layouts or maps: [`SmallMProduct::enqueue`] only launches.

use crate::error::{Error, Result};
use crate::format::{CodeOrder, Operand};

use crate::gpu::device::memory::Span;
use crate::gpu::gemm::available::HOPPER;
use crate::gpu::gemm::call::{Call, Spans};
use crate::gpu::gemm::chain_rules;
use crate::gpu::gemm::desc::GemmDesc;
use crate::gpu::gemm::formulation::Formulation;
use crate::gpu::gemm::our_pairs::small_m_operands;
use crate::gpu::gemm::outline::{ScaleUse, second_level};
use crate::gpu::gemm::small_m_rules::of_any_m;
use crate::gpu::gemm::steps::{Offered, Search, none_such};
use crate::gpu::gemm::sum::{Sum, Target, ValueSource};
use crate::gpu::gemm::wgmma_rules::waves;
use crate::gpu::handle::Handle;
use crate::gpu::kernels::{
    Each, KernelFamily, Meeting, OneRow, OuterScales, SmallMCall, SmallMConfig, SmallMEnd, SmallMOperands,
    SmallMScales, SmallMWeights, SmallMWeightsCall, Wgmma,
};

/// What of a GPU decides how few rows are multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SmallMGpu {
    pub(crate) sm_count: usize,
    /// Whether its blocks form clusters.
    pub(crate) clusters: bool,
    /// Whether it has the warpgroup products of sm_90, and its kernels of one row.
    pub(crate) wgmma: bool,
}

impl SmallMGpu {
    pub(crate) fn of(handle: &Handle) -> Self {
        let device = handle.device();
        let gpu = device.compute_capability;
        Self { sm_count: device.sm_count as usize, clusters: gpu >= HOPPER, wgmma: gpu == HOPPER }
    }

    /// The first pass of a product in this configuration by warpgroup products; `None`: it is none of those here.
    pub(crate) fn wgmma(self, config: SmallMConfig, codes: CodeOrder, [m, n, k]: [usize; 3]) -> Option<Wgmma> {
        Wgmma::of(config, codes, [m.min(64), n, k], self.sm_count).filter(|_| self.wgmma)
    }

    /// One row by the kernels that keep it in shared memory; `None`: it is none of those here.
    pub(crate) fn one_row(self, config: SmallMConfig, codes: CodeOrder, mnk: [usize; 3]) -> Option<OneRow> {
        OneRow::of(config, codes, mnk, self.sm_count).filter(|_| self.wgmma)
    }

    /// Which kernels that are sm_90's alone multiply such a product; `None`: none.
    pub(crate) fn how(self, config: SmallMConfig, codes: CodeOrder, mnk: [usize; 3]) -> Option<How> {
        let one_row = self.one_row(config, codes, mnk).map(|_| How::OneRow);
        one_row.or_else(|| self.meeting(config, codes, mnk).map(How::Warpgroups))
    }

    /// Where the parts of sums of such a product meet: in memory, if those of any pass do.
    fn meeting(self, config: SmallMConfig, codes: CodeOrder, mnk: [usize; 3]) -> Option<Meeting> {
        let passes = Wgmma::passes(config, codes, mnk, self.sm_count).filter(|_| self.wgmma);
        passes.map(|pass| pass.meeting()).max()
    }

    /// Refuses a split that is none of clusters, where parts of sums cannot meet in memory.
    pub(crate) fn check_split(self, config: SmallMConfig, codes: CodeOrder, mnk: [usize; 3]) -> Result<()> {
        Wgmma::check_split(config, codes, mnk, self.wgmma.then_some(self.sm_count))
    }

    /// Scratch memory of a product for A in the order of warpgroup products, and for sums over parts of k; 0: it needs none.
    pub(crate) fn scratch_bytes(self, config: SmallMConfig, codes: CodeOrder, mnk: [usize; 3]) -> usize {
        match self.wgmma {
            true => Wgmma::scratch_of(config, codes, mnk, self.sm_count),
            false => config.parts_bytes(self.clusters, [mnk[0], mnk[1]]),
        }
    }
}

/// How kernels that are sm_90's alone multiply few rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    OneRow,
    Warpgroups(Meeting),
}

impl std::fmt::Display for How {
    /// Behind the configuration.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::OneRow => f.write_str(", A in shared memory"),
            Self::Warpgroups(meeting) => write!(f, ", by warpgroup products, {meeting}"),
        }
    }
}

/// A product by our kernels for few rows, ready apart from addresses.
pub(crate) struct SmallMProduct {
    sum: Sum,
    configs: Vec<SmallMConfig>,
    chosen: usize,
    mnk: [usize; 3],
    codes: CodeOrder,
    gpu: SmallMGpu,
}

impl SmallMProduct {
    /// Configurations, the one that should be fastest first.
    pub(crate) fn ask(desc: &GemmDesc, sum: &Sum, gpu: SmallMGpu, search: Search) -> Self {
        // What it does not serve the outline has refused.
        let operands = small_m_operands(desc).unwrap_or(SmallMOperands::Fp8);
        let mnk = [desc.m, desc.n, desc.k];
        let mut configs = match desc.batch_invariant {
            true => of_any_m(operands, desc.b_order, [desc.n, desc.k], gpu.sm_count).into_iter().collect(),
            false => chain_rules::order(operands, desc.b_order, mnk, gpu, desc.chained),
        };
        configs.retain(|config| gpu.clusters || !config.needs_clusters());
        configs.truncate(search.candidates.max(1));
        Self::new(desc, sum, gpu, configs)
    }

    /// Why a record may not have this configuration.
    pub(crate) fn serves(desc: &GemmDesc, gpu: SmallMGpu, config: SmallMConfig) -> Offered<()> {
        let (block, mnk) = (config.block(), [desc.m, desc.n, desc.k]);
        let of_operands = |operands| {
            let invariant = || of_any_m(operands, desc.b_order, [desc.n, desc.k], gpu.sm_count) == Some(config);
            block.operands() == operands && (!desc.batch_invariant || invariant())
        };
        let runs = block.multiplies(desc.m) && (gpu.clusters || !config.needs_clusters());
        if !runs || !small_m_operands(desc).is_some_and(of_operands) {
            return Err(none_such(Formulation::SmallM, desc));
        }
        gpu.check_split(config, desc.b_order, mnk).map_err(|error| error.to_string())
    }

    /// With the configuration of a record.
    pub(crate) fn recorded(desc: &GemmDesc, sum: &Sum, gpu: SmallMGpu, config: SmallMConfig) -> Self {
        Self::new(desc, sum, gpu, vec![config])
    }

    fn new(desc: &GemmDesc, sum: &Sum, gpu: SmallMGpu, configs: Vec<SmallMConfig>) -> Self {
        Self { sum: *sum, configs, chosen: 0, mnk: [desc.m, desc.n, desc.k], codes: desc.b_order, gpu }
    }

    /// What a call launches.
    pub(crate) fn kernels(&self) -> KernelFamily {
        match self.config().block().operands() {
            SmallMOperands::Fp8 => KernelFamily::SmallM,
            SmallMOperands::E2m1Weights | SmallMOperands::E4m3Weights => KernelFamily::SmallMWeights,
        }
    }

    /// Scratch memory for sums over parts of k, or for A in the order of warpgroup products, for any of its configurations.
    pub(crate) fn scratch_bytes(&self) -> usize {
        self.configs.iter().map(|config| self.gpu.scratch_bytes(*config, self.codes, self.mnk)).max().unwrap_or(0)
    }

    /// The configuration in use.
    pub(crate) fn config(&self) -> SmallMConfig {
        self.configs[self.chosen]
    }

    /// How often the clusters of the configuration in use fill the GPU.
    pub(crate) fn waves(&self) -> f32 {
        waves(self.config(), self.codes, self.mnk, self.gpu)
    }

    /// How often it goes over B.
    pub(crate) fn passes(&self) -> usize {
        self.mnk[0].div_ceil(self.config().block().most_rows())
    }

    /// What `explain` says of it beside its configuration.
    pub(crate) fn words(&self) -> String {
        let passes = if self.passes() > 1 { format!(", {} passes over B", self.passes()) } else { String::new() };
        match self.gpu.how(self.config(), self.codes, self.mnk) {
            Some(how) => format!("{passes}{how}"),
            None => passes,
        }
    }

    /// Place of the configuration in use, and how many are offered.
    pub(crate) fn place(&self) -> (usize, usize) {
        (self.chosen, self.configs.len())
    }

    /// Uses another configuration; out of range keeps the one in use.
    pub(crate) fn choose(&mut self, index: usize) {
        if index < self.configs.len() {
            self.chosen = index;
        }
    }

    /// Enqueues the product. Allocates nothing, waits for nothing.
    pub(crate) fn enqueue(&mut self, call: &Call<'_>) -> Result<()> {
        let (desc, sum, (alpha, beta)) = (call.desc, self.sum, call.factors(self.sum.accumulate));
        // What the outline does not fuse, the epilogue kernel does.
        let fused = sum.target == Target::D;
        let end = SmallMEnd {
            alpha,
            beta,
            bias: call.bias.as_ref().filter(|_| sum.bias.is_some()).map(|(span, dtype)| (span, *dtype)),
            activation: sum.activation,
            residual: call.residual.as_ref().filter(|_| fused).map(|(span, stride, dtype)| (span, *stride, *dtype)),
            d: if fused { &call.d } else { &call.scratch.sum },
            d_stride: sum.d_stride,
            d_type: sum.d_type,
        };
        let (config, [m, n, k], kernels) = (self.config(), self.mnk, call.handle.kernels());
        let Some(values) = sum.values else {
            let layout = SmallMScales::of(sum.a_scales, sum.b_scales);
            let layout = layout.ok_or_else(|| bug("scales of these layouts"))?;
            let codes = [&call.a.numbers, &call.b.numbers];
            let scales = [required("scales of A", &call.a.scales)?, required("scales of B", &call.b.scales)?];
            return kernels.small_m_product(
                call.queue,
                &SmallMCall { config, gated: false, m, n, k, codes, scales, layout, end },
            );
        };
        let (a, a_stride) = match values.a {
            ValueSource::Scratch => (&call.scratch.a, k),
            ValueSource::Given => (&call.a.numbers, desc.a_stride),
            ValueSource::Codes => return Err(bug("codes of A")),
        };
        let weights = SmallMWeights::of(desc.b, desc.b_order).ok_or_else(|| bug("weights of such codes"))?;
        let scales = match weights {
            SmallMWeights::Fp8 => None,
            SmallMWeights::Fp8Vectors | SmallMWeights::Fp8Tiles => Some(required("scales of B", &call.b.scales)?),
            SmallMWeights::Nvfp4 | SmallMWeights::Nvfp4Repacked | SmallMWeights::Mxfp4 | SmallMWeights::Mxfp8 => {
                Some(required("block scales of B", &call.b.block_scales)?)
            }
        };
        let product = SmallMWeightsCall {
            config,
            m,
            n,
            k,
            a,
            a_stride,
            a_type: values.dtype,
            a_is_made: values.a == ValueSource::Scratch,
            weights,
            codes: &call.b.numbers,
            scales,
            outer: [outer("A", desc.a, &call.a)?, outer("B", desc.b.into(), &call.b)?],
            scratch: Some(&call.scratch.few_rows).filter(|scratch| scratch.bytes > 0),
            end,
        };
        kernels.small_m_weights_product(call.queue, &product)
    }
}

/// The scales of an operand that are no part of the sum, if its scheme has any.
fn outer<'s>(name: &str, operand: Operand, spans: &'s Spans<'s>) -> Result<Option<OuterScales<'s>>> {
    let each = match second_level(operand) {
        ScaleUse::Nothing => return Ok(None),
        ScaleUse::One => Each::All,
        ScaleUse::Each => Each::Row,
    };
    Ok(Some(OuterScales { scales: required(&format!("scales of {name}"), &spans.scales)?, each }))
}

fn required<'s>(name: &str, span: &'s Option<Span<'s>>) -> Result<&'s Span<'s>> {
    span.as_ref().ok_or_else(|| bug(&format!("no {name}")))
}

fn bug(what: &str) -> Error {
    Error::unsupported(
        format!("{what} in the small-m formulation"),
        "its kernels do not read that",
        "this is a bug of scaled-gemm: please report it",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{DType, Fp8Format, Scheme};
    use crate::gpu::gemm::formulation::Finish;
    use crate::gpu::gemm::outline::outline;
    use crate::gpu::kernels::SmallMBlock;

    const H200: SmallMGpu = SmallMGpu { sm_count: 132, clusters: true, wgmma: true };

    #[test]
    fn configurations_are_what_is_tuned() {
        let f = Fp8Format::E4M3;
        let (a, b) = (Scheme::Fp8Group1x128(f), Scheme::Fp8Group128x128(f));
        let desc = GemmDesc::new(4, 4096, 7168, a, b, DType::Bf16);
        let sum = outline(&desc, Formulation::SmallM, Finish::Fused).unwrap().sum;
        let search = |candidates| Search { candidates, workspace_limit: 0, alpha: 1.0 };
        let mut product = SmallMProduct::ask(&desc, &sum, H200, search(20));
        let best = SmallMConfig::new(SmallMBlock::Two, 2).unwrap();
        assert_eq!((product.place(), product.config()), ((0, 12), best));
        let waves = product.waves();
        product.choose(11);
        assert!(product.config() != best && product.waves() != waves);
        product.choose(12);
        assert_eq!(product.place(), (11, 12), "out of range keeps the one in use");
        assert_eq!([0, 1, 2].map(|count| SmallMProduct::ask(&desc, &sum, H200, search(count)).place().1), [1, 1, 2]);
        assert_eq!(SmallMProduct::recorded(&desc, &sum, H200, best).place(), (0, 1));
        let e2m1 = GemmDesc::new(4, 4096, 7168, Operand::Plain(DType::Bf16), Scheme::Nvfp4, DType::Bf16);
        let sum = outline(&e2m1, Formulation::SmallM, Finish::Fused).unwrap().sum;
        let product = SmallMProduct::ask(&e2m1, &sum, H200, search(20));
        assert_eq!(product.place(), (0, 20));
        assert!(product.configs.iter().all(|config| config.block().operands() == SmallMOperands::E2m1Weights));
        // More rows than 16 are for tiles.
        let more = GemmDesc { m: 17, ..e2m1 };
        let product = SmallMProduct::ask(&more, &sum, H200, search(20));
        assert_eq!(product.place(), (0, 6), "3 and 6 are splits of warpgroup products, too");
        assert!(product.configs.iter().all(|config| config.block() == SmallMBlock::Tile));
        let plain = GemmDesc { b, ..e2m1 };
        let sum = outline(&plain, Formulation::SmallM, Finish::Fused).unwrap().sum;
        let product = SmallMProduct::ask(&plain, &sum, H200, search(20));
        assert_eq!(product.place(), (0, 4));
        assert!(product.configs.iter().all(|config| config.block() == SmallMBlock::TileE4m3));
    }

    /// The same split for every m, in tiles, whatever is the fastest; no other in a record.
    #[test]
    fn batch_invariant_products_have_one_configuration() {
        let pairs =
            [(Scheme::Nvfp4, SmallMBlock::Tile), (Scheme::Fp8Group128x128(Fp8Format::E4M3), SmallMBlock::TileE4m3)];
        for (b, block) in pairs {
            for gpu in [H200, SmallMGpu { clusters: false, wgmma: false, ..H200 }] {
                for [n, k] in [[4096, 7168], [72, 32], [57344, 8192], [576, 1536]] {
                    let of = |m| {
                        let desc = GemmDesc::new(m, n, k, Operand::Plain(DType::Bf16), b, DType::Bf16);
                        let desc = desc.with_batch_invariant(true);
                        let sum = outline(&desc, Formulation::SmallM, Finish::Fused).unwrap().sum;
                        (
                            desc,
                            SmallMProduct::ask(
                                &desc,
                                &sum,
                                gpu,
                                Search { candidates: 20, workspace_limit: 0, alpha: 1.0 },
                            ),
                        )
                    };
                    let (_, one) = of(1);
                    assert_eq!((one.config().block(), one.place()), (block, (0, 1)), "{b}");
                    for m in [16, 17, 64, 65, 8192] {
                        let (desc, product) = of(m);
                        assert_eq!(
                            (product.config(), product.passes()),
                            (one.config(), m.div_ceil(64)),
                            "{b}, m = {m}"
                        );
                        assert_eq!(
                            product.scratch_bytes(),
                            gpu.scratch_bytes(one.config(), CodeOrder::Published, [m, n, k])
                        );
                        let all = SmallMConfig::all(block.operands());
                        let served: Vec<_> = all
                            .chain(SmallMConfig::in_memory(block))
                            .filter(|config| SmallMProduct::serves(&desc, gpu, *config).is_ok())
                            .collect();
                        assert_eq!(served, [one.config()], "{b}, m = {m}");
                    }
                }
            }
        }
        let many = GemmDesc::new(65, 4096, 7168, Operand::Plain(DType::Bf16), pairs[1].0, DType::Bf16);
        let tiles = SmallMConfig::all(SmallMOperands::E4m3Weights).collect::<Vec<_>>();
        assert!(
            tiles.iter().all(|config| SmallMProduct::serves(&many, H200, *config).is_ok()),
            "asked for nothing, any will do"
        );
    }

    /// Splits that no cluster has are offered and taken from records where parts of sums can meet in memory, in every pass, and refused with words elsewhere.
    #[test]
    fn splits_that_meet_in_memory_alone_serve_where_they_can() {
        let older = SmallMGpu { clusters: false, wgmma: false, ..H200 };
        let config = |block, split| SmallMConfig::new(block, split).unwrap();
        let (e2m1, e4m3) = (SmallMBlock::Tile, SmallMBlock::TileE4m3);
        let of = |m, [n, k]: [usize; 2], b, gpu| {
            let desc = GemmDesc::new(m, n, k, Operand::Plain(DType::Bf16), b, DType::Bf16);
            let sum = outline(&desc, Formulation::SmallM, Finish::Fused).unwrap().sum;
            let search = Search { candidates: 20, workspace_limit: 0, alpha: 1.0 };
            (desc, SmallMProduct::ask(&desc, &sum, gpu, search))
        };
        let splits = |product: &SmallMProduct| {
            let mut all: Vec<_> =
                product.configs.iter().filter(|c| c.block().takes_passes()).map(|c| c.split()).collect();
            all.sort_unstable();
            all
        };
        let tiles = Scheme::Fp8Tensor(Fp8Format::E4M3);
        let shape = [10240, 8192];
        let (desc, product) = of(64, shape, Scheme::Nvfp4, H200);
        assert_eq!(
            (splits(&product), product.config()),
            (vec![1, 2, 3, 4, 8], config(e2m1, 3)),
            "480 blocks are too many"
        );
        assert!(product.words().contains("one that adds parts of sums"), "{}", product.words());
        assert_eq!(product.scratch_bytes(), 64 * 8192 * 2 + 3 * 64 * 10240 * 4);
        assert_eq!(SmallMProduct::serves(&desc, H200, config(e2m1, 3)), Ok(()));
        let many = SmallMProduct::serves(&desc, H200, config(e2m1, 6)).unwrap_err();
        assert!(many.contains("264, and here are 480"), "{many}");
        let wrong = SmallMProduct::serves(&desc, H200, config(e4m3, 3)).unwrap_err();
        assert_eq!(wrong, "small-m has no such algorithm for bf16 x nvfp4 and m = 64");
        assert_eq!(splits(&of(32, shape, Scheme::Nvfp4, H200).1), [1, 2, 3, 4, 8]);
        assert_eq!(splits(&of(64, [2112, 7168], Scheme::Nvfp4, H200).1), [1, 2, 3, 4, 6, 8]);
        // Rows, or passes, that blocks in clusters multiply.
        let refused = [(8, Scheme::Nvfp4, 8), (16, tiles, 16), (65, tiles, 1), (130, tiles, 2)];
        for (m, b, rows) in refused {
            let (desc, product) = of(m, shape, b, H200);
            let block = if b == Scheme::Nvfp4 { e2m1 } else { e4m3 };
            assert_eq!(splits(&product), [1, 2, 4, 8], "{b}, m = {m}");
            let why = SmallMProduct::serves(&desc, H200, config(block, 3)).unwrap_err();
            let words = [
                format!("m = {m}, n = 10240, k = 8192"),
                format!("do not multiply {rows} rows"),
                "choose a split of 1, 2, 4 or 8".into(),
            ];
            assert!(words.iter().all(|word| why.contains(word)), "{why}");
        }
        assert_eq!([64, 128].map(|m| splits(&of(m, shape, tiles, H200).1)), [[1, 2, 3, 4, 8], [1, 2, 3, 4, 8]]);
        // On other GPUs nothing does.
        for gpu in [older, SmallMGpu { wgmma: false, ..H200 }] {
            let (desc, product) = of(64, shape, Scheme::Nvfp4, gpu);
            assert_eq!(splits(&product), [1, 2, 4, 8]);
            let why = SmallMProduct::serves(&desc, gpu, config(e2m1, 3)).unwrap_err();
            assert!(why.contains("which sm_90 alone has"), "{why}");
        }
    }

    /// Without clusters parts of k are those of a block's warps, or tiles that leave their sums in scratch memory.
    #[test]
    fn older_gpus_have_configurations_and_scratch() {
        let older = SmallMGpu { clusters: false, wgmma: false, ..H200 };
        let ask = |m, b, gpu| {
            let desc = GemmDesc::new(m, 4096, 7168, Operand::Plain(DType::Bf16), b, DType::Bf16);
            let sum = outline(&desc, Formulation::SmallM, Finish::Fused).unwrap().sum;
            SmallMProduct::ask(&desc, &sum, gpu, Search { candidates: 20, workspace_limit: 0, alpha: 1.0 })
        };
        for b in [Scheme::Nvfp4, Scheme::Fp8Group128x128(Fp8Format::E4M3)] {
            for m in [1, 16, 17, 64] {
                let width = match m {
                    16 if b == Scheme::Nvfp4 => 16,
                    17 => 32,
                    64 => 64,
                    _ => 0,
                };
                // Of warpgroup products sums of the largest split are left in memory, too.
                let parts = if width > 0 { 8 * m * 4096 * 4 } else { 0 };
                assert_eq!(ask(m, b, H200).scratch_bytes(), width * 7168 * 2 + parts, "{b}, m = {m}");
                let product = ask(m, b, older);
                assert!(product.configs.iter().all(|config| !config.needs_clusters()));
                assert_eq!(product.scratch_bytes(), 8 * m * 4096 * 4, "the largest split is 8");
                assert_eq!(product.kernels(), KernelFamily::SmallMWeights);
            }
        }
    }
}
