//! Products with the pass behind them in one kernel: SwiGLU of two products and results in codes give, in every configuration, the bytes of the reference
//! applied to what our product for sm_90 stores in FP32; groups give what each gives alone; nothing else is written; bad input is refused.
#![cfg(feature = "cuda")]

#[path = "gpu_fused_gemm/between_guards.rs"]
mod between_guards;
mod common;
#[path = "common/guarded.rs"]
mod guarded;
#[path = "common/sm90.rs"]
mod sm90;

use common::gemm::*;
use common::*;
use ndarray::Array2;
use scaled_gemm::reference::{self, Swiglu};
use scaled_gemm::{
    Activation, DType, Epilogue, Error, Formulation, Fp8Format, Fp8Granularity, Fp8Recipe, Fp8Rule, FusedGemmArgs,
    FusedOut, GemmArgs, GemmDesc, GroupedRows, Handle, HostQuantMatrix, KernelFamily, MatMut, PlanOptions, QuantMatrix,
    Result, Scheme, Sm90Config, SmallMConfig, SmallMOperands, VecRef,
};
use sm90::*;

const CODES: [Sm90Config; 3] = [Sm90Config::Tile256x128, Sm90Config::Tile128x128, Sm90Config::Tile64x128];
const SWIGLU: [Sm90Config; 2] = [Sm90Config::Tile128x128, Sm90Config::Tile64x128];
/// What SwiGLU is of.
const PAIRS: [(Scheme, Scheme); 3] = [(VEC, BLK), ROW_PAIR, TENSOR_PAIR];

fn recipes() -> impl Iterator<Item = Fp8Recipe> {
    Fp8Recipe::all().filter(|r| (r.granularity, r.format) == (Fp8Granularity::Group1x128, Fp8Format::E4M3))
}

/// A and B on the device, and what our product of them is in FP32.
struct Products {
    a: QuantMatrix,
    b: QuantMatrix,
    sums: Array2<f32>,
}

impl Products {
    /// B of n rows. A magnitude of each row of A times `size`.
    fn new(handle: &Handle, rng: &mut Noise, [m, n, k]: [usize; 3], size: f32, epilogue: Option<&[f32]>) -> Self {
        let a = quantized(&tiled(rng, m, k).mapv(|x| x * size), VEC);
        let b = quantized(&tiled(rng, n, k), BLK);
        Self::of(handle, &a, &b, epilogue)
    }

    /// The same of these schemes.
    fn of_pair(handle: &Handle, rng: &mut Noise, [m, n, k]: [usize; 3], size: f32, pair: (Scheme, Scheme)) -> Self {
        let a = quantized(&tiled(rng, m, k).mapv(|x| x * size), pair.0);
        Self::of(handle, &a, &quantized(&tiled(rng, n, k), pair.1), None)
    }

    fn of(handle: &Handle, a: &HostQuantMatrix, b: &HostQuantMatrix, bias: Option<&[f32]>) -> Self {
        let ([m, n, k], schemes) = ([a.rows(), b.rows(), a.cols()], (a.scheme(), b.scheme()));
        let (a, b) = (QuantMatrix::from_host(handle, a).unwrap(), QuantMatrix::from_host(handle, b).unwrap());
        let epilogue = Epilogue {
            bias: bias.map(|_| DType::F32),
            activation: if bias.is_some() { Activation::Gelu } else { Activation::None },
            residual: None,
        };
        let desc =
            GemmDesc::new(m, n, k, schemes.0, schemes.1, DType::F32).with_epilogue(epilogue).with_batch_invariant(true);
        let mut d = poisoned(handle, m * n * 4);
        let bias = bias.map(|bias| handle.upload(bias).unwrap());
        let mut args =
            GemmArgs::new(&a, &b, MatMut::new(&mut d, DType::F32, m, n).unwrap()).alpha(ALPHA).batch_invariant(true);
        if let Some(bias) = &bias {
            args = args.bias(VecRef::new(bias, DType::F32, n).unwrap()).activation(Activation::Gelu);
        }
        let options = PlanOptions::default().with_formulation(Formulation::Sm90);
        handle.plan_with(&desc, &options).unwrap().execute(handle, args).unwrap();
        let sums = values_of(DType::F32, &handle.stream().clone_dtoh(&d).unwrap());
        Self { a, b, sums: Array2::from_shape_vec((m, n), sums).unwrap() }
    }

    fn swiglu(&self) -> Array2<f32> {
        reference::swiglu(self.sums.view(), &Swiglu::default()).unwrap().0
    }
}

const ALPHA: f32 = 0.75;

fn coded(x: &Array2<f32>, recipe: Fp8Recipe) -> HostQuantMatrix {
    reference::quantize(x.view(), DType::F32, recipe).unwrap()
}

/// All bytes are to be written but for the padding of rows.
fn target(handle: &Handle, m: usize, n: usize) -> QuantMatrix {
    let mut q = poisoned_matrix(handle, VEC, m, n);
    let padded = m.next_multiple_of(4);
    q.write_parts(handle, |mut parts| {
        let (mut codes, mut scales) = (vec![0xFFu8; padded * n], vec![f32::NAN; padded * n.div_ceil(128)]);
        codes[m * n..].fill(0);
        scales.chunks_mut(padded).for_each(|of_block| of_block[m..].fill(0.0));
        handle.write(&mut parts.codes, &codes)?;
        handle.write(&mut parts.scales, &scales)
    })
    .unwrap();
    q
}

/// Every configuration, output type and recipe of SwiGLU of these products.
fn check_swiglu(handle: &Handle, of: &Products, what: &str, recipes: impl Iterator<Item = Fp8Recipe>) {
    let (m, n) = (of.sums.nrows(), of.sums.ncols() / 2);
    let want = of.swiglu();
    for recipe in recipes {
        let want = coded(&want, recipe);
        for config in SWIGLU {
            let mut d = target(handle, m, n);
            let args = FusedGemmArgs::swiglu(&of.a, &of.b, &mut d).alpha(ALPHA).recipe(recipe).config(config);
            handle.fused_gemm(args).unwrap();
            assert_device_bits(handle, &d, &want, &format!("{what}, {config}, {recipe:?}"));
        }
    }
    for (i, (out, config)) in WIDE.into_iter().flat_map(|out| SWIGLU.map(|config| (out, config))).enumerate() {
        let stride = n + 8 * i;
        let mut d = poisoned(handle, m * stride * out.bytes());
        let to = MatMut::new(&mut d, out, m, n).unwrap().with_row_stride(stride).unwrap();
        handle.fused_gemm(FusedGemmArgs::swiglu(&of.a, &of.b, to).alpha(ALPHA).config(config)).unwrap();
        let got = handle.stream().clone_dtoh(&d).unwrap();
        let mut wanted = vec![0xFF; got.len()];
        for i in 0..m {
            let row: Vec<f32> = want.row(i).iter().map(|x| round_to(out, *x)).collect();
            wanted[i * stride * out.bytes()..][..n * out.bytes()].copy_from_slice(&bytes_of(out, &row));
        }
        assert!(same_numbers(out, &got, &wanted), "{what}, {config}, {out}");
    }
}

/// Equal bits, or both NaN.
fn same_numbers(dtype: DType, got: &[u8], want: &[u8]) -> bool {
    got == want
        || values_of(dtype, got)
            .iter()
            .zip(values_of(dtype, want))
            .all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan())
}

const WIDE: [DType; 3] = [DType::Bf16, DType::F16, DType::F32];

/// Small, for runs under a sanitizer: each kernel.
#[test]
fn each_kernel_once() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(271);
    let first = || recipes().take(1);
    for pair in PAIRS {
        let of = Products::of_pair(&handle, &mut rng, [131, 256, 400], 1.0, pair);
        check_swiglu(&handle, &of, &format!("{pair:?}"), first());
    }
    check_codes(&handle, &mut rng, [131, 144, 400], 1.0, first());
    Grouped::with_pairs().for_each(|(of, pair)| grouped(&handle, &mut rng, of, pair));
}

#[test]
fn swiglu_of_shapes_that_cut_tiles_stages_and_clusters() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(272);
    for (i, k) in [16, 128, 144, 1040].into_iter().enumerate() {
        for (j, m) in [1, 63, 65, 127, 129, 257, 300].into_iter().enumerate() {
            let n = [128, 256, 384][(i + j) % 3];
            for pair in PAIRS {
                let products = Products::of_pair(&handle, &mut rng, [m, 2 * n, k], 1.0, pair);
                let what = format!("{pair:?}, {m} x {n} x {k}");
                check_swiglu(&handle, &products, &what, recipes().skip(i + j).take(1));
            }
        }
    }
}

/// Gates beyond what the short sigmoid is for, infinite ones and NaN, and every rule of scales.
#[test]
fn swiglu_of_large_gates_and_every_rule() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(273);
    for (size, pair) in PAIRS.into_iter().flat_map(|pair| [1.0, 40.0, 1e4].map(|size| (size, pair))) {
        let (m, n, k) = (70, 128, 272);
        let mut x = tiled(&mut rng, m, k).mapv(|x| x * size);
        x.row_mut(3).fill(0.0);
        let host = quantized(&x, pair.0);
        let mut codes = host.logical_codes().to_vec();
        codes[5 * k] = 0x7F;
        let mut scales = host.logical_scales();
        // One of a matrix would be that of all rows.
        if scales.len() > 1 {
            scales[3 * 7] = f32::INFINITY;
        }
        let a = HostQuantMatrix::from_logical(pair.0, m, k, codes, &scales).unwrap();
        let products = Products::of(&handle, &a, &quantized(&tiled(&mut rng, 2 * n, k), pair.1), None);
        let far = products.sums.iter().filter(|x| x.abs() > 80.0).count();
        assert!(size < 2.0 || far > 100, "{far} numbers of {size} are far");
        check_swiglu(&handle, &products, &format!("{pair:?} of size {size}"), recipes());
    }
}

/// Codes of a whole epilogue.
fn check_codes(
    handle: &Handle,
    rng: &mut Noise,
    [m, n, k]: [usize; 3],
    size: f32,
    recipes: impl Iterator<Item = Fp8Recipe>,
) {
    let bias: Vec<f32> = (0..n).map(|_| rng.normal()).collect();
    let (bias_there, mut seed) = (handle.upload(&bias).unwrap(), rng.bits());
    for recipe in recipes {
        for with_bias in [false, true] {
            seed += 1;
            let mut own = Noise::new(seed);
            let of = Products::new(handle, &mut own, [m, n, k], size, with_bias.then_some(&bias));
            let want = coded(&of.sums, recipe);
            for config in CODES {
                let mut d = target(handle, m, n);
                let mut args =
                    FusedGemmArgs::quantized(&of.a, &of.b, &mut d).alpha(ALPHA).recipe(recipe).config(config);
                if with_bias {
                    args = args.bias(VecRef::new(&bias_there, DType::F32, n).unwrap()).activation(Activation::Gelu);
                }
                handle.fused_gemm(args).unwrap();
                assert_device_bits(handle, &d, &want, &format!("{m} x {n} x {k}, {config}, {recipe:?}, {with_bias}"));
            }
        }
    }
}

#[test]
fn codes_of_products() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(274);
    for (i, k) in [16, 128, 400, 1040].into_iter().enumerate() {
        for (j, n) in [16, 64, 128, 144, 208, 400].into_iter().enumerate() {
            let m = [1, 65, 127, 129, 257, 300][(i + j) % 6];
            let size = [1.0, 100.0][j % 2];
            check_codes(&handle, &mut rng, [m, n, k], size, recipes().skip((i + j) % 8).take(1));
        }
    }
}

/// What is made of the products of groups.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Grouped {
    Codes,
    /// Codes of the activation of a bias of each group.
    CodesOfEpilogue,
    Swiglu,
    /// SwiGLU in numbers, rows apart.
    SwigluNumbers,
}

impl Grouped {
    const ALL: [Self; 4] = [Self::Codes, Self::CodesOfEpilogue, Self::Swiglu, Self::SwigluNumbers];

    fn is_swiglu(self) -> bool {
        matches!(self, Self::Swiglu | Self::SwigluNumbers)
    }

    /// With all that each is of.
    fn with_pairs() -> impl Iterator<Item = (Self, (Scheme, Scheme))> {
        let pairs = |of: Self| if of.is_swiglu() { &PAIRS[..] } else { &PAIRS[..1] };
        Self::ALL.into_iter().flat_map(move |of| pairs(of).iter().map(move |pair| (of, *pair)))
    }
}

/// Groups one behind the other with gaps, or in slots, of which one is empty: each as alone, and nothing else is written; in a graph whose counts change.
fn grouped(handle: &Handle, rng: &mut Noise, of: Grouped, pair: (Scheme, Scheme)) {
    let (groups, n, k, slot) = (4, 256, 272, 132);
    let parts = if of.is_swiglu() { 2 } else { 1 };
    let rows = groups * slot + 3;
    let a = quantized(&tiled(rng, rows, k), pair.0);
    let b = quantized(&tiled(rng, groups * parts * n, k), pair.1);
    let recipe = Fp8Recipe::new(Fp8Granularity::Group1x128, Fp8Format::E4M3);
    let on = QuantMatrix::from_host(handle, &a).unwrap();
    let weights = QuantMatrix::from_host(handle, &b).unwrap();
    // The same numbers in every type. That of another group would show in the scales, which are FP32 numbers of the largest sum.
    let in_all = |x| round_to(DType::F16, round_to(DType::Bf16, x));
    let bias: Vec<f32> = (0..groups * n).map(|_| in_all(rng.normal())).collect();
    let biases = WIDE.map(|dtype| handle.upload(&bytes_of(dtype, &bias)).unwrap());
    let starts: Vec<i64> = (0..groups as i64).map(|g| g * slot as i64).collect();
    let starts_there = handle.upload(&starts).unwrap();
    let mut counts_there = handle.upload(&[0i64; 4]).unwrap();
    handle.load_kernels(&[KernelFamily::Sm90]).unwrap();
    for (i, masked) in [false, true].into_iter().enumerate() {
        for (j, config) in if of.is_swiglu() { &SWIGLU[..] } else { &CODES[..] }.iter().enumerate() {
            // Of the bias, or of D.
            let dtype = WIDE[(2 * i + j) % 3];
            let what = format!("{of:?} of {pair:?}, {config}, {dtype}, masked: {masked}");
            let stride = n + 8 * (i + 1);
            let mut codes = poisoned_matrix(handle, VEC, rows, n);
            let mut numbers = handle.upload(&vec![0xFFu8; rows * stride * dtype.bytes()]).unwrap();
            let graph = capture_owned(handle, || {
                let places = match masked {
                    true => GroupedRows::Masked { slot_rows: slot, counts: counts_there.view() },
                    false => GroupedRows::Contiguous { starts: starts_there.view(), counts: counts_there.view() },
                };
                let args = match of {
                    Grouped::Codes => FusedGemmArgs::quantized(&on, &weights, &mut codes),
                    Grouped::CodesOfEpilogue => FusedGemmArgs::quantized(&on, &weights, &mut codes)
                        .bias(VecRef::new(&biases[(2 * i + j) % 3], dtype, groups * n)?)
                        .activation(Activation::Gelu),
                    Grouped::Swiglu => FusedGemmArgs::swiglu(&on, &weights, &mut codes),
                    Grouped::SwigluNumbers => {
                        let d = MatMut::new(&mut numbers, dtype, rows, n)?.with_row_stride(stride)?;
                        FusedGemmArgs::swiglu(&on, &weights, d)
                    }
                };
                handle.fused_gemm(args.alpha(ALPHA).groups(groups, places).config(*config))
            })
            .unwrap();
            for counts in [[7i64, 0, 132, 65], [0, 1, 128, 131 - i as i64]] {
                handle.write(&mut counts_there.view_mut(), &counts).unwrap();
                handle.write(&mut numbers.view_mut(), &vec![0xFFu8; rows * stride * dtype.bytes()]).unwrap();
                codes
                    .write_parts(handle, |mut p| {
                        handle.write(&mut p.codes, &vec![0xFFu8; rows.next_multiple_of(4) * n])?;
                        handle.write(&mut p.scales, &vec![f32::NAN; rows.next_multiple_of(4) * n / 128])
                    })
                    .unwrap();
                handle.launch(&graph).unwrap();
                let scales: Vec<f32> = handle.read(&codes.scales()).unwrap();
                // Bytes from one row to the next.
                let (got, pitch) = match of {
                    Grouped::SwigluNumbers => (numbers.view(), stride * dtype.bytes()),
                    _ => (codes.codes(), n),
                };
                let got = handle.read_bytes(&got).unwrap();
                let mut want = vec![0xFF; got.len()];
                let mut want_scales = vec![f32::NAN; scales.len()];
                for (g, count) in counts.into_iter().enumerate().filter(|(_, count)| *count > 0) {
                    let (from, count) = (g * slot, count as usize);
                    let own = Products::of(
                        handle,
                        &rows_of(&a, from..from + count),
                        &rows_of(&b, g * parts * n..(g + 1) * parts * n),
                        (of == Grouped::CodesOfEpilogue).then(|| &bias[g * n..(g + 1) * n]),
                    );
                    let values = if of.is_swiglu() { own.swiglu() } else { own.sums };
                    if of == Grouped::SwigluNumbers {
                        for (row, values) in values.rows().into_iter().enumerate() {
                            let row_of_d = bytes_of(dtype, &values.mapv(|x| round_to(dtype, x)));
                            want[(from + row) * pitch..][..row_of_d.len()].copy_from_slice(&row_of_d);
                        }
                        continue;
                    }
                    let own = coded(&values, recipe);
                    want[from * n..(from + count) * n].copy_from_slice(own.logical_codes());
                    for (i, scale) in own.logical_scales().into_iter().enumerate() {
                        want_scales[i % (n / 128) * rows.next_multiple_of(4) + from + i / (n / 128)] = scale;
                    }
                }
                let wrong = (0..rows).find(|row| got[row * pitch..][..pitch] != want[row * pitch..][..pitch]);
                assert_eq!(wrong, None, "the first row that differs, {what}, counts {counts:?}");
                let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
                assert!(scales.iter().zip(&want_scales).all(same), "scales, {what}, counts {counts:?}");
            }
        }
    }
}

#[test]
fn groups_give_what_each_gives_alone() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(275);
    Grouped::with_pairs().for_each(|(of, pair)| grouped(&handle, &mut rng, of, pair));
}

/// So many groups that blocks take several tiles, of more k-blocks than a ring has stages: SwiGLU of rows and whole matrices, too.
#[test]
fn swiglu_of_many_groups() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(281);
    let (groups, slot, n, k) = (100, 132, 128, 784);
    let counts: Vec<i64> = (0..groups as i64).map(|g| [129, 0, 132, 65, 130][g as usize % 5]).collect();
    // Of 128 rows and columns of D, 64 of each matrix.
    let tiles: i64 = counts.iter().map(|count| (count + 127) / 128 * (n as i64 / 64)).sum();
    assert!(tiles > 2 * i64::from(handle.device().sm_count), "{tiles} tiles");
    let recipe = Fp8Recipe::new(Fp8Granularity::Group1x128, Fp8Format::E4M3);
    let there = handle.upload(&counts).unwrap();
    for pair in PAIRS {
        let a = quantized(&tiled(&mut rng, groups * slot, k), pair.0);
        let b = quantized(&tiled(&mut rng, groups * 2 * n, k), pair.1);
        let [on, weights] = [&a, &b].map(|host| QuantMatrix::from_host(&handle, host).unwrap());
        // Codes alone: their scales are those of the other suites' products.
        let mut want = vec![0xFF; groups * slot * n];
        for (g, count) in counts.iter().map(|count| *count as usize).enumerate().filter(|(_, count)| *count > 0) {
            let (a, b) = (rows_of(&a, g * slot..g * slot + count), rows_of(&b, g * 2 * n..(g + 1) * 2 * n));
            let own = coded(&Products::of(&handle, &a, &b, None).swiglu(), recipe);
            want[g * slot * n..][..count * n].copy_from_slice(own.logical_codes());
        }
        for config in SWIGLU {
            let mut d = poisoned_matrix(&handle, VEC, groups * slot, n);
            d.write_parts(&handle, |mut parts| handle.write(&mut parts.codes, &vec![0xFFu8; groups * slot * n]))
                .unwrap();
            let rows = GroupedRows::Masked { slot_rows: slot, counts: there.view() };
            let args = FusedGemmArgs::swiglu(&on, &weights, &mut d).alpha(ALPHA).recipe(recipe);
            handle.fused_gemm(args.groups(groups, rows).config(config)).unwrap();
            let got = handle.read_bytes(&d.codes()).unwrap();
            let wrong = (0..groups * slot).find(|row| got[row * n..][..n] != want[row * n..][..n]);
            assert_eq!(wrong, None, "the first row that differs, {pair:?}, {config}");
        }
    }
}

/// Several tiles a block, fewer k-blocks than stages, so that one warpgroup may run ahead of the other, far gates, and tiles of which one warpgroup has no columns: a race
/// would show.
#[test]
fn the_same_bits_every_time() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(276);
    let recipe = Fp8Recipe::new(Fp8Granularity::Group1x128, Fp8Format::E4M3);
    for (k, size) in [(272, 1e4), (272, 1.0), (1040, 1.0)] {
        let (m, n) = (2000, 2048);
        for pair in PAIRS {
            let of = Products::of_pair(&handle, &mut rng, [m, 2 * n, k], size, pair);
            let want = coded(&of.swiglu(), recipe);
            for (round, config) in (0..10).flat_map(|round| SWIGLU.map(|config| (round, config))) {
                let mut d = target(&handle, m, n);
                handle.fused_gemm(FusedGemmArgs::swiglu(&of.a, &of.b, &mut d).alpha(ALPHA).config(config)).unwrap();
                let what = format!("{pair:?}, {config}, k = {k}, size {size}, round {round}");
                assert_device_bits(&handle, &d, &want, &what);
            }
        }
        // The last tile along n has columns for one of the two warpgroups alone.
        let n = 2064;
        let of = Products::new(&handle, &mut rng, [m, n, k], size, None);
        let want = coded(&of.sums, recipe);
        for round in 0..10 {
            for config in CODES {
                let mut d = target(&handle, m, n);
                handle.fused_gemm(FusedGemmArgs::quantized(&of.a, &of.b, &mut d).alpha(ALPHA).config(config)).unwrap();
                assert_device_bits(&handle, &d, &want, &format!("{config}, k = {k}, size {size}, round {round}"));
            }
        }
    }
}

/// Where the products and a pass are faster, they give the bits of the one kernel, by every rule, and in graphs.
#[test]
fn two_steps_give_the_bits_of_one_kernel() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(277);
    let shapes = [(33, 2048, 1552), (256, 2048, 2064), (130, 1408, 4112)].into_iter().enumerate();
    for (i, (m, n, k), pair) in shapes.flat_map(|(i, shape)| PAIRS.map(|pair| (i, shape, pair))) {
        let of = Products::of_pair(&handle, &mut rng, [m, 2 * n, k], [1.0, 1e4, 1e-8][i], pair);
        let want = of.swiglu();
        for (recipe, out) in recipes().zip(WIDE.into_iter().cycle()) {
            let mut d = target(&handle, m, n);
            let args = FusedGemmArgs::swiglu(&of.a, &of.b, &mut d).alpha(ALPHA).recipe(recipe);
            let text = args.explain(&handle).unwrap();
            assert!(
                text.contains("for both products, and a pass over them; ") && text.contains("bytes of scratch"),
                "{text}"
            );
            handle.fused_gemm(args).unwrap();
            assert_device_bits(&handle, &d, &coded(&want, recipe), &format!("{pair:?}, {recipe:?}, m = {m}\n{text}"));
            let mut d = handle.upload(&vec![0xFFu8; m * (n + 4) * out.bytes()]).unwrap();
            let to = MatMut::new(&mut d, out, m, n).unwrap().with_row_stride(n + 4).unwrap();
            handle.fused_gemm(FusedGemmArgs::swiglu(&of.a, &of.b, to).alpha(ALPHA)).unwrap();
            let got = handle.read_bytes(&d.view()).unwrap();
            for (row, bytes) in want.rows().into_iter().zip(got.chunks((n + 4) * out.bytes())) {
                let row = bytes_of(out, row.mapv(|v| round_to(out, v)).iter());
                let (row_got, gap) = bytes.split_at(row.len());
                assert!(same_numbers(out, row_got, &row) && gap.iter().all(|byte| *byte == 0xFF), "{out}\n{text}");
            }
            let call = |d: &mut _| {
                let to = MatMut::new(d, out, m, n)?.with_row_stride(n + 4)?;
                handle.fused_gemm(FusedGemmArgs::swiglu(&of.a, &of.b, to).alpha(ALPHA))
            };
            let graph = capture_owned(&handle, || call(&mut d)).unwrap();
            handle.write(&mut d.view_mut(), &vec![0xFFu8; got.len()]).unwrap();
            handle.launch(&graph).unwrap();
            assert!(handle.read_bytes(&d.view()).unwrap() == got, "in a graph, {out}");
        }
    }
}

fn refusal(result: Result<()>, words: &[&str]) -> Error {
    refused(result, words)
}

#[test]
fn bad_input_is_refused() {
    let Some(handle) = hopper() else { return };
    let zeros = |scheme, rows, cols| QuantMatrix::zeros(&handle, scheme, rows, cols).unwrap();
    let (a, b) = (zeros(VEC, 64, 256), zeros(BLK, 512, 256));
    let fused = |args: FusedGemmArgs<'_>| handle.fused_gemm(args);
    // D of another width, shape, scheme; B of one matrix; n that cuts a tile of scales.
    refusal(fused(FusedGemmArgs::swiglu(&a, &b, &mut zeros(VEC, 64, 512))), &["512 x 256", "2 * 512 x 256"]);
    refusal(fused(FusedGemmArgs::swiglu(&a, &b, &mut zeros(VEC, 60, 256))), &["60 x 256", "A's 64 rows"]);
    refusal(fused(FusedGemmArgs::swiglu(&a, &b, &mut zeros(ROW_PAIR.0, 64, 256))), &["fp8-row", "fp8-1x128"]);
    let cut = zeros(BLK, 2 * 192, 256);
    refusal(fused(FusedGemmArgs::swiglu(&a, &cut, &mut zeros(VEC, 64, 192))), &["192", "multiple of 128"]);
    refusal(fused(FusedGemmArgs::quantized(&a, &b, &mut zeros(VEC, 64, 256))), &["512 x 256", "256 x 256"]);
    let odd = zeros(BLK, 512, 128);
    refusal(fused(FusedGemmArgs::swiglu(&a, &odd, &mut zeros(VEC, 64, 256))), &["A's 256 columns"]);
    // Schemes, recipes and configurations that no kernel has.
    let mut small = zeros(VEC, 64, 256);
    let rows = (zeros(ROW_PAIR.0, 64, 256), zeros(TENSOR_PAIR.1, 512, 256));
    let ragged = (zeros(VEC, 64, 200), zeros(BLK, 512, 200));
    refusal(fused(FusedGemmArgs::swiglu(&ragged.0, &ragged.1, &mut zeros(VEC, 64, 256))), &["200", "multiple of 16"]);
    let words = ["fp8-row", "of fp8-tensor:e4m3 on both sides", "SwigluSource"];
    refusal(fused(FusedGemmArgs::swiglu(&rows.0, &rows.1, &mut zeros(VEC, 64, 256))), &words);
    let rows_of_b = zeros(ROW_PAIR.1, 512, 256);
    let error = refusal(fused(FusedGemmArgs::quantized(&rows.0, &rows_of_b, &mut zeros(VEC, 64, 512))), &["fp8-row"]);
    assert!(!error.to_string().contains("on both sides"), "{error}");
    let few = FusedGemmArgs::swiglu(&rows.0, &rows_of_b, &mut small)
        .small_m_config(SmallMConfig::all(SmallMOperands::Fp8).next().unwrap());
    refusal(fused(few), &["of fp8-1x128 and fp8-128x128"]);
    let mut d = zeros(VEC, 64, 256);
    let row = Fp8Recipe::new(Fp8Granularity::Row, Fp8Format::E4M3);
    refusal(fused(FusedGemmArgs::swiglu(&a, &b, &mut d).recipe(row)), &["fp8-row", "Group1x128"]);
    let wide = Fp8Recipe::new(Fp8Granularity::Group1x128, Fp8Format::E5M2);
    refusal(fused(FusedGemmArgs::swiglu(&a, &b, &mut d).recipe(wide)), &["e5m2"]);
    let gemm = wide.with_rule(Fp8Rule::DeepGemm);
    refusal(fused(FusedGemmArgs::swiglu(&a, &b, &mut d).recipe(gemm)), &["E4M3"]);
    refusal(fused(FusedGemmArgs::swiglu(&a, &b, &mut d).config(Sm90Config::Tile256x128)), &["256x128", "64x128"]);
    refusal(fused(FusedGemmArgs::swiglu(&a, &b, &mut d).activation(Activation::Relu)), &["SwiGLU"]);
    let mut wide = zeros(VEC, 64, 512);
    refusal(fused(FusedGemmArgs::quantized(&a, &b, &mut wide).config(Sm90Config::Tile64x64)), &["64x64", "256x128"]);
    let bias = handle.upload(&[0f32; 8]).unwrap();
    let bias = |n| VecRef::new(&bias, DType::F32, n).unwrap();
    refusal(fused(FusedGemmArgs::quantized(&a, &b, &mut wide).bias(bias(8))), &["8 numbers", "512"]);
    refusal(fused(FusedGemmArgs::swiglu(&a, &b, &mut d).bias(bias(8))), &["SwiGLU"]);
    // D in another type; counts for fewer groups; slots that A does not hold.
    let mut bytes = handle.alloc(64 * 256 * 4).unwrap();
    let fp8 = MatMut::new(&mut bytes, DType::E4M3, 64, 256).unwrap();
    refusal(fused(FusedGemmArgs::swiglu(&a, &b, fp8)), &["e4m3"]);
    let counts = handle.upload(&[1i64]).unwrap();
    let slots = |slot_rows| GroupedRows::Masked { slot_rows, counts: counts.view() };
    let two = zeros(BLK, 2 * 512, 256);
    refusal(fused(FusedGemmArgs::swiglu(&a, &two, &mut d).groups(2, slots(32))), &["8 bytes for 2 groups"]);
    refusal(fused(FusedGemmArgs::swiglu(&a, &two, &mut d).groups(2, slots(36))), &["64 rows for 2 slots of 36"]);
    refusal(fused(FusedGemmArgs::swiglu(&a, &b, &mut d).groups(2, slots(32))), &["2 * 2 * 256"]);
    // And none of it left anything behind.
    handle.synchronize().unwrap();
    assert!(handle.read_bytes(&d.codes()).unwrap().iter().all(|code| *code == 0));
    // Empty ones are no work.
    fused(FusedGemmArgs::swiglu(&zeros(VEC, 0, 256), &b, &mut zeros(VEC, 0, 256))).unwrap();
    let out: FusedOut<'_> = (&mut d).into();
    assert!(matches!(out, FusedOut::Quantized(_)));
    let text = FusedGemmArgs::swiglu(&zeros(VEC, 64, 256), &b, &mut d).explain(&handle).unwrap();
    assert!(text.contains("SwiGLU") && text.contains("one launch of 64x128"), "{text}");
}
