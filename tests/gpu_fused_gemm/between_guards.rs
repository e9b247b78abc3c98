//! Operands of products with the pass behind them, in one allocation, 0xFF between them and in what is of no group: the bits of operands apart, and nothing but D is written.

use std::ops::Range;

use scaled_gemm::DeviceBuffer;

use super::*;
use crate::guarded::Arena;

/// What a call stores, and how it is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Asked {
    SwigluNumbers(DType),
    SwigluCodes,
    Codes,
    /// With a bias and an activation.
    CodesOfEpilogue(DType),
}

/// Where D goes.
enum Target {
    Numbers(DeviceBuffer, DType, usize),
    Codes(QuantMatrix),
}

/// Operands on the device, wherever they lie.
struct Placed {
    a: QuantMatrix,
    b: QuantMatrix,
    bias: DeviceBuffer,
    /// Starts and counts of groups.
    places: Option<[DeviceBuffer; 2]>,
    d: Target,
}

/// Counts of groups, which begin at `start`; of none all rows are one product.
type Groups<'a> = Option<(&'a [i64], &'a [i64])>;

const M: usize = 203;

impl Placed {
    fn call(&mut self, handle: &Handle, asked: Asked, groups: usize, config: Sm90Config) {
        let Self { a, b, bias, places, d } = self;
        let n = b.rows() / groups / if matches!(asked, Asked::SwigluNumbers(_) | Asked::SwigluCodes) { 2 } else { 1 };
        let d: FusedOut<'_> = match d {
            Target::Numbers(d, dtype, stride) => {
                MatMut::new(d, *dtype, M, n).unwrap().with_row_stride(*stride).unwrap().into()
            }
            Target::Codes(d) => d.into(),
        };
        let mut args = match (asked, d) {
            (Asked::SwigluNumbers(_) | Asked::SwigluCodes, d) => FusedGemmArgs::swiglu(a, b, d),
            (_, FusedOut::Quantized(d)) => FusedGemmArgs::quantized(a, b, d),
            (_, FusedOut::Plain(_)) => unreachable!(),
        };
        if let Asked::CodesOfEpilogue(dtype) = asked {
            args = args.bias(VecRef::new(&*bias, dtype, groups * n).unwrap()).activation(Activation::Gelu);
        }
        if let Some([starts, counts]) = places {
            let rows = GroupedRows::Contiguous { starts: starts.view(), counts: counts.view() };
            args = args.groups(groups, rows);
        }
        handle.fused_gemm(args.alpha(ALPHA).config(config)).unwrap();
    }

    /// All that is stored, padding and what no group has included.
    fn stored(&self, handle: &Handle) -> Vec<Vec<u8>> {
        let buffers = match &self.d {
            Target::Numbers(d, ..) => vec![d.view()],
            Target::Codes(d) => vec![d.codes(), d.scales()],
        };
        buffers.iter().map(|bytes| handle.read_bytes(bytes).unwrap()).collect()
    }
}

fn check(
    handle: &Handle,
    rng: &mut Noise,
    k: usize,
    asked: Asked,
    of: Groups<'_>,
    (configs, pair): (&[Sm90Config], (Scheme, Scheme)),
) {
    let (n, groups) = (256, of.map_or(1, |(starts, _)| starts.len()));
    let matrices = if matches!(asked, Asked::SwigluNumbers(_) | Asked::SwigluCodes) { 2 } else { 1 };
    let host_a = quantized(&tiled(rng, M, k), pair.0);
    let host_b = quantized(&tiled(rng, groups * matrices * n, k), pair.1);
    let bias: Vec<f32> = (0..groups * n).map(|_| rng.normal()).collect();
    let bias_type = if let Asked::CodesOfEpilogue(dtype) = asked { dtype } else { DType::F32 };
    let bias = bytes_of(bias_type, &bias.iter().map(|x| round_to(bias_type, *x)).collect::<Vec<_>>());
    for config in configs {
        let words = format!("{asked:?} of {pair:?}, {config}, k = {k}, {groups} groups");
        let full = |bytes: usize| vec![0xFFu8; bytes];
        let (stride, d_bytes) = match asked {
            Asked::SwigluNumbers(dtype) => (n + 8, ((M - 1) * (n + 8) + n) * dtype.bytes()),
            _ => (n, 0),
        };
        let mut apart = Placed {
            a: QuantMatrix::from_host(handle, &host_a).unwrap(),
            b: QuantMatrix::from_host(handle, &host_b).unwrap(),
            bias: handle.upload(&bias).unwrap(),
            places: of.map(|(starts, counts)| [starts, counts].map(|numbers| handle.upload(numbers).unwrap())),
            d: match asked {
                Asked::SwigluNumbers(dtype) => Target::Numbers(handle.upload(&full(d_bytes)).unwrap(), dtype, stride),
                _ => Target::Codes(poisoned_matrix(handle, VEC, M, n)),
            },
        };
        apart.call(handle, asked, groups, *config);
        let want = apart.stored(handle);
        assert!(want[0].iter().any(|byte| *byte != 0xFF), "{words}");

        let mut arena = Arena::new(handle, 8 << 20);
        let (d, written): (Target, Vec<Range<usize>>) = match asked {
            Asked::SwigluNumbers(dtype) => {
                let d = arena.place(handle, &full(d_bytes), 16);
                (Target::Numbers(d, dtype, stride), vec![arena.last()])
            }
            _ => {
                let (d, places) = arena.target(handle, VEC, [M, n]);
                (Target::Codes(d), places)
            }
        };
        let mut guarded = Placed {
            a: arena.matrix(handle, &host_a),
            b: arena.matrix(handle, &host_b),
            bias: arena.place(handle, &bias, bias_type.bytes()),
            places: of.map(|(starts, counts)| [starts, counts].map(|numbers| arena.numbers(handle, numbers))),
            d,
        };
        let before = arena.ready(handle);
        guarded.call(handle, asked, groups, *config);
        arena.read_behind(handle, &before, &written, &words);
        // Rows apart and of no group are poison in both.
        assert!(guarded.stored(handle) == want, "other bits than of operands apart: {words}");
    }
}

#[test]
fn operands_between_guards() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(279);
    let groups: Groups<'_> = Some((&[0, 64, 64, 140], &[61, 0, 70, 63]));
    for (k, of) in [(16, None), (400, None), (1168, None), (272, groups), (1040, groups)] {
        for (dtype, pair) in WIDE.into_iter().flat_map(|dtype| PAIRS.map(|pair| (dtype, pair))) {
            check(&handle, &mut rng, k, Asked::SwigluNumbers(dtype), of, (&SWIGLU, pair));
        }
        for dtype in WIDE {
            check(&handle, &mut rng, k, Asked::CodesOfEpilogue(dtype), of, (&CODES, PAIRS[0]));
        }
        for pair in PAIRS {
            check(&handle, &mut rng, k, Asked::SwigluCodes, of, (&SWIGLU, pair));
        }
        check(&handle, &mut rng, k, Asked::Codes, of, (&CODES, PAIRS[0]));
    }
}
