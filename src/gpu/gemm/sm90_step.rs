//! [`Sm90Product`]: the product step by our kernels for sm_90. Configurations are chosen beforehand, and tensor maps kept as long as the operands
//! stay where they are, so that [`Sm90Product::enqueue`] only launches then.

use crate::epilogue::Activation;
use crate::error::{Error, Result};
use crate::format::DType;
use crate::gpu::device::memory::Span;
use crate::gpu::gemm::call::{Call, Spans};
use crate::gpu::gemm::desc::{Accumulate, GemmDesc};
use crate::gpu::gemm::our_pairs::Sm90Pair;
use crate::gpu::gemm::sm90_rules::{Sm90Gpu, order_of_whole, serves, stand_in, waves};
use crate::gpu::gemm::steps::Search;
use crate::gpu::gemm::sum::{Sum, Target};
use crate::gpu::kernels::{KernelFamily, Sm90Call, Sm90Config, Sm90End, Sm90Maps, Sm90Operand};

/// A product by our kernels for sm_90, ready apart from addresses.
pub(crate) struct Sm90Product {
    sum: Sum,
    pair: Sm90Pair,
    configs: Vec<Sm90Config>,
    chosen: usize,
    /// In the place of the one in use, where a call's alpha is not 1.
    stand_in: Option<Sm90Config>,
    batch_invariant: bool,
    waves: f32,
    mnk: [usize; 3],
    gpu: Sm90Gpu,
    maps: Sm90Maps,
}

impl Sm90Product {
    /// Configurations, the one that should be fastest first.
    pub(crate) fn ask(desc: &GemmDesc, sum: &Sum, pair: Sm90Pair, gpu: Sm90Gpu, search: Search) -> Self {
        let mut configs = order_of_whole(pair.scales, [desc.m, desc.n, desc.k], gpu);
        let ends = |config: Sm90Config| search.alpha == 1.0 || !config.ends_plainly();
        configs.retain(|config| Self::serves(desc, sum, pair, *config) && ends(*config));
        configs.truncate(search.candidates.max(1));
        Self::new(desc, sum, pair, gpu, configs)
    }

    /// Whether this configuration computes the product.
    pub(crate) fn serves(desc: &GemmDesc, sum: &Sum, pair: Sm90Pair, config: Sm90Config) -> bool {
        let bf16 = Sum { target: Target::D, d_type: DType::Bf16, ..*sum };
        let plain = Sum { bias: None, activation: Activation::None, accumulate: Accumulate::Replace, ..bf16 };
        serves(config, desc.batch_invariant, pair, *sum == plain && desc.epilogue.residual.is_none())
    }

    /// With the configuration of a record.
    pub(crate) fn recorded(desc: &GemmDesc, sum: &Sum, pair: Sm90Pair, gpu: Sm90Gpu, config: Sm90Config) -> Self {
        Self::new(desc, sum, pair, gpu, vec![config])
    }

    fn new(desc: &GemmDesc, sum: &Sum, pair: Sm90Pair, gpu: Sm90Gpu, configs: Vec<Sm90Config>) -> Self {
        let mnk = [desc.m, desc.n, desc.k];
        let (waves, stand_in) = (waves(configs[0], mnk, gpu.sm_count), stand_in(configs[0], mnk, gpu.sm_count));
        let batch_invariant = desc.batch_invariant;
        let maps = Sm90Maps::default();
        Self { sum: *sum, pair, configs, chosen: 0, stand_in, batch_invariant, waves, mnk, gpu, maps }
    }

    /// The kernels that it launches.
    pub(crate) fn kernels(&self) -> KernelFamily {
        self.pair.kernels()
    }

    /// The configuration in use.
    pub(crate) fn config(&self) -> Sm90Config {
        self.configs[self.chosen]
    }

    /// What a call whose alpha is not 1 runs in the place of the configuration in use, if that ends plainly, and what equal bits cost: which should be faster.
    pub(crate) fn with_other_alpha(&self) -> Option<String> {
        let stand_in = self.stand_in?;
        let waves = waves(stand_in, self.mnk, self.gpu.sm_count);
        let all_ends = |config: &Sm90Config| serves(*config, self.batch_invariant, self.pair, false);
        let first = order_of_whole(self.pair.scales, self.mnk, self.gpu).into_iter().find(all_ends);
        let faster = first.filter(|first| *first != stand_in).map_or(String::new(), |first| {
            format!("; {first}, of other bits, should be faster, and is among what autotune tries with that alpha")
        });
        Some(format!("sm90 {stand_in}, {waves:.2} waves, of the same bits{faster}"))
    }

    /// How often the tiles of the configuration in use fill the GPU.
    pub(crate) fn waves(&self) -> f32 {
        self.waves
    }

    /// Place of the configuration in use, and how many are offered.
    pub(crate) fn place(&self) -> (usize, usize) {
        (self.chosen, self.configs.len())
    }

    /// Uses another configuration; out of range keeps the one in use.
    pub(crate) fn choose(&mut self, index: usize) {
        if index < self.configs.len() {
            self.chosen = index;
            self.waves = waves(self.configs[index], self.mnk, self.gpu.sm_count);
            self.stand_in = stand_in(self.configs[index], self.mnk, self.gpu.sm_count);
        }
    }

    /// Enqueues the product. Allocates nothing, waits for nothing.
    pub(crate) fn enqueue(&mut self, call: &Call<'_>) -> Result<()> {
        let (desc, sum, (alpha, beta)) = (call.desc, self.sum, call.factors(self.sum.accumulate));
        // What the outline does not fuse, the epilogue kernel does.
        let fused = sum.target == Target::D;
        let product = Sm90Call {
            config: self.config(),
            stand_in: self.stand_in,
            formats: self.pair.formats,
            m: desc.m,
            n: desc.n,
            k: desc.k,
            a: operand("A", &call.a)?,
            b: operand("B", &call.b)?,
            layout: self.pair.scales,
            d: if fused { &call.d } else { &call.scratch.sum },
            d_stride: sum.d_stride,
            d_type: sum.d_type,
            alpha,
            beta,
            bias: call.bias.as_ref().filter(|_| sum.bias.is_some()).map(|(span, dtype)| (span, *dtype)),
            activation: sum.activation,
            residual: call.residual.as_ref().filter(|_| fused).map(|(span, stride, dtype)| (span, *stride, *dtype)),
            groups: None,
            end: Sm90End::Numbers,
        };
        call.handle.kernels().sm90_product(call.queue, &product, &mut self.maps)
    }
}

fn operand<'s>(name: &str, spans: &'s Spans<'s>) -> Result<Sm90Operand<'s>> {
    let scales: Option<&Span<'s>> = spans.scales.as_ref();
    let scales = scales.ok_or_else(|| bug(&format!("{name} without scales")))?;
    Ok(Sm90Operand { codes: &spans.numbers, scales })
}

fn bug(what: &str) -> Error {
    Error::unsupported(
        format!("{what} in the sm90 formulation"),
        "its kernels read them",
        "this is a bug of scaled-gemm: please report it",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epilogue::Epilogue;
    use crate::format::{Fp8Format, Scheme};
    use crate::gpu::gemm::formulation::{Finish, Formulation};
    use crate::gpu::gemm::our_pairs::sm90_pair;
    use crate::gpu::gemm::outline::outline;
    use crate::gpu::gemm::sm90_rules::sum_order;

    const H200: Sm90Gpu = Sm90Gpu { sm_count: 132, card: Some(crate::gpu::gemm::measured::Card::H200) };

    #[test]
    fn configurations_are_what_is_tuned() {
        let f = Fp8Format::E4M3;
        let (a, b) = (Scheme::Fp8Group1x128(f), Scheme::Fp8Group128x128(f));
        let desc = GemmDesc::new(1024, 4096, 7168, a, b, DType::Bf16);
        let sum = outline(&desc, Formulation::Sm90, Finish::Fused).unwrap().sum;
        let search = |candidates| Search { candidates, workspace_limit: 0, alpha: 1.0 };
        let pair = sm90_pair(&desc).unwrap();
        let mut product = Sm90Product::ask(&desc, &sum, pair, H200, search(8));
        assert_eq!((product.place(), product.config()), ((0, 8), Sm90Config::Tile256x128));
        let waves = product.waves();
        product.choose(1);
        assert!(product.config() != Sm90Config::Tile256x128 && product.waves() != waves);
        product.choose(8);
        assert_eq!(product.place(), (1, 8), "out of range keeps the one in use");
        assert_eq!(
            [0, 1, 2].map(|count| Sm90Product::ask(&desc, &sum, pair, H200, search(count)).place().1),
            [1, 1, 2]
        );
        let recorded = Sm90Product::recorded(&desc, &sum, pair, H200, Sm90Config::Tile64x64);
        assert_eq!((recorded.place(), recorded.config()), ((0, 1), Sm90Config::Tile64x64));
    }

    /// What takes the place of one that ends plainly follows the shape, is of the same bits, and is named; with an alpha that asks for it none that ends plainly is tried.
    #[test]
    fn another_alpha_has_its_own_configurations() {
        let f = Fp8Format::E4M3;
        let (a, b) = (Scheme::Fp8Group1x128(f), Scheme::Fp8Group128x128(f));
        let words = |mnk: [usize; 3], batch_invariant, config| {
            let [m, n, k] = mnk;
            let desc = GemmDesc::new(m, n, k, a, b, DType::Bf16).with_batch_invariant(batch_invariant);
            let (sum, pair) =
                (outline(&desc, Formulation::Sm90, Finish::Fused).unwrap().sum, sm90_pair(&desc).unwrap());
            let of = |candidates, alpha| {
                Sm90Product::ask(&desc, &sum, pair, H200, Search { candidates, workspace_limit: 0, alpha })
            };
            let all = of(20, 1.0).configs;
            let ends: Vec<_> = all.iter().copied().filter(|config| !config.ends_plainly()).collect();
            assert_eq!(of(20, -0.5).configs, ends, "{mnk:?}");
            assert_eq!(of(1, 2.0).configs, [ends[0]], "{mnk:?}");
            // Another that autotune takes, or a record.
            let mut chosen = of(20, 1.0);
            chosen.choose(all.iter().position(|other| *other == config).unwrap());
            let recorded = Sm90Product::recorded(&desc, &sum, pair, H200, config);
            assert_eq!(chosen.with_other_alpha(), recorded.with_other_alpha(), "{mnk:?}, {config}");
            chosen.with_other_alpha()
        };
        use Sm90Config::{Tile64x32, Tile128x80, Tile128x96K2, Tile128x160};
        assert_eq!(
            words([1024, 576, 7168], false, Tile128x96K2).unwrap(),
            "sm90 128x160-k2, 0.48 waves, of the same bits; 128x64, of other bits, should be faster, and is among what autotune tries with that alpha"
        );
        assert_eq!(
            words([256, 5120, 8192], false, Tile128x80).unwrap(),
            "sm90 128x128, 0.61 waves, of the same bits; 128x160-k2, of other bits, should be faster, and is among what autotune tries with that alpha"
        );
        assert_eq!(words([256, 5120, 8192], true, Tile128x80).unwrap(), "sm90 128x128, 0.61 waves, of the same bits");
        assert_eq!(words([128, 2048, 768], false, Tile64x32).unwrap(), "sm90 64x64-two, 0.24 waves, of the same bits");
        assert_eq!(words([256, 5120, 8192], false, Tile128x160), None);
    }

    /// Those that end plainly are for whole products of blocks to BF16 that nothing follows, and by no record for others.
    #[test]
    fn what_ends_plainly_is_offered_where_nothing_follows_the_sums() {
        let f = Fp8Format::E4M3;
        let (vec, blk, row) = (Scheme::Fp8Group1x128(f), Scheme::Fp8Group128x128(f), Scheme::Fp8Row(f));
        let of = |a, b, out| GemmDesc::new(4096, 576, 7168, a, b, out);
        let plain = of(vec, blk, DType::Bf16);
        let with = |epilogue| plain.with_epilogue(epilogue);
        let offered = |desc: &GemmDesc, finish| {
            let (sum, pair) = (outline(desc, Formulation::Sm90, finish).unwrap().sum, sm90_pair(desc).unwrap());
            let search = Search { candidates: 20, workspace_limit: 0, alpha: 1.0 };
            let product = Sm90Product::ask(desc, &sum, pair, H200, search);
            for config in Sm90Config::ALL.into_iter().filter(|config| config.ends_plainly() && config.k_parts() == 1) {
                let is_offered = product.configs.contains(&config);
                assert_eq!(Sm90Product::serves(desc, &sum, pair, config), is_offered, "{desc}: {config}");
            }
            product.configs.into_iter().filter(|config| config.ends_plainly()).count()
        };
        for (desc, expected) in [
            (plain, 4),
            (plain.with_batch_invariant(true), 4),
            (GemmDesc { m: 1024, ..plain }, 6),
            (plain.with_out_stride(640), 4),
            (of(vec, blk, DType::F16), 0),
            (of(vec, blk, DType::F32), 0),
            (of(vec, blk, DType::F32).with_accumulate(Accumulate::Add), 0),
            (with(Epilogue { bias: Some(DType::Bf16), ..Epilogue::default() }), 0),
            (with(Epilogue { activation: Activation::Relu, ..Epilogue::default() }), 0),
            (with(Epilogue { residual: Some(DType::Bf16), ..Epilogue::default() }), 0),
            (of(vec, vec, DType::Bf16), 0),
            (of(blk, vec, DType::Bf16), 0),
            (of(row, row, DType::Bf16), 0),
            (of(Scheme::Fp8Group1x128(Fp8Format::E5M2), blk, DType::Bf16), 0),
        ] {
            assert_eq!(offered(&desc, Finish::Fused), expected, "{desc}");
        }
        assert_eq!(
            offered(&with(Epilogue { bias: Some(DType::Bf16), ..Epilogue::default() }), Finish::EpilogueKernel),
            0
        );
    }

    /// Whatever m is, the first configuration and those that autotune may take instead add up in one order, and end alike.
    #[test]
    fn batch_invariant_products_are_summed_in_one_order() {
        let f = Fp8Format::E4M3;
        let (vec, row, tensor) = (Scheme::Fp8Group1x128(f), Scheme::Fp8Row(f), Scheme::Fp8Tensor(f));
        let all = Epilogue { bias: Some(DType::F32), activation: Activation::Gelu, residual: Some(DType::F16) };
        let search = Search { candidates: 8, workspace_limit: 0, alpha: 1.0 };
        let mut firsts = Vec::new();
        for (a, b) in [(vec, Scheme::Fp8Group128x128(f)), (vec, vec), (row, row), (tensor, tensor)] {
            for (n, k) in [
                (576, 7168),
                (4096, 7168),
                (7168, 2048),
                (24576, 1536),
                (16, 16),
                (18432, 7168),
                (5120, 8192),
                (1536, 2048),
                (2048, 768),
            ] {
                for (out, epilogue) in
                    [(DType::Bf16, all), (DType::F32, Epilogue::default()), (DType::Bf16, Epilogue::default())]
                {
                    let (mut orders, mut ends) = (Vec::new(), Vec::new());
                    for m in [1, 2, 16, 64, 65, 128, 256, 320, 513, 1024, 4096, 8192] {
                        let desc = GemmDesc::new(m, n, k, a, b, out).with_epilogue(epilogue).with_batch_invariant(true);
                        let sum = outline(&desc, Formulation::Sm90, Finish::Fused).unwrap().sum;
                        assert!(outline(&desc, Formulation::Sm90, Finish::EpilogueKernel).is_err(), "{desc}");
                        ends.push(Sum { rows: 0, ..sum });
                        for sm_count in [132, 114, 78] {
                            let pair = sm90_pair(&desc).unwrap();
                            let product = Sm90Product::ask(&desc, &sum, pair, Sm90Gpu { sm_count, ..H200 }, search);
                            firsts.push(product.config());
                            orders.extend(product.configs.into_iter().map(sum_order));
                        }
                    }
                    let what = format!("{a} x {b}, n = {n}, k = {k}");
                    assert!(orders.iter().all(|order| *order == orders[0]), "{what}: {orders:?}");
                    assert!(ends.iter().all(|end| *end == ends[0]), "{what}: {ends:?}");
                }
            }
        }
        // With blocks of A there are some configurations, all of one order.
        let blk = Scheme::Fp8Group128x128(f);
        for (m, formats) in [(1, [f, f]), (300, [Fp8Format::E5M2, f]), (8192, [f, Fp8Format::E5M2])] {
            let [a, b] = [Scheme::Fp8Group128x128(formats[0]), Scheme::Fp8Group1x128(formats[1])];
            for invariant in [false, true] {
                let desc = GemmDesc::new(m, 576, 7168, a, b, DType::Bf16).with_batch_invariant(invariant);
                let sum = outline(&desc, Formulation::Sm90, Finish::Fused).unwrap().sum;
                let product =
                    Sm90Product::ask(&desc, &sum, sm90_pair(&desc).unwrap(), H200, Search { candidates: 20, ..search });
                let mut offered = product.configs.clone();
                offered.sort();
                use Sm90Config::{Tile64x64Two, Tile64x128, Tile128x128, Tile256x128};
                assert_eq!(offered, [Tile256x128, Tile128x128, Tile64x128, Tile64x64Two], "{desc}");
            }
        }
        assert!(
            outline(&GemmDesc::new(16, 576, 7168, blk, blk, DType::Bf16), Formulation::Sm90, Finish::Fused).is_err()
        );
        firsts.sort();
        firsts.dedup();
        let all: Vec<_> = Sm90Config::ALL.into_iter().filter(|config| config.k_parts() == 1).collect();
        assert_eq!(firsts, all, "each of them is the first of some m");
    }
}
