//! How much signal the three products of experts must keep beside f64 sums, by the kinds of scales of their operands: for the suites of the CPU and of the GPU, which compile without `common`.
#![allow(dead_code)]

use ndarray::{Array2, ArrayView2, Axis, concatenate, s};
use scaled_gemm::codec::round_to;
use scaled_gemm::reference::{GemmInputs, Noise, quantize, scaled_gemm, sqnr_db};
use scaled_gemm::{DType, Fp8Format, Recipe, Scheme};

pub const GROUPS: usize = 3;
/// Rows of a slot, and features out and in.
pub const SLOT: usize = 128;
pub const OUT: usize = 128;
pub const FEATURES: usize = 256;
/// Rows of each group.
pub const COUNTS: [usize; GROUPS] = [128, 100, 33];

/// Schemes of A and B of `Y = X W^T`, `dX = dY W` and `dW = dY^T X`, and dB that each must keep of normal numbers, and with outliers.
pub struct Asked {
    pub pairs: [[Scheme; 2]; 3],
    pub normal: [f64; 3],
    pub outliers: [f64; 3],
}

/// 28 and 25 dB wherever both sides are E4M3; E5M2 has one digit less, E2M1 two. Less of outliers in MXFP8, nearly all of whose signal they are: an FP32 scale makes of the largest number of a block the largest code, exactly; by a power
/// of two it is rounded as others are, by up to a 17th (24.6 dB) in E4M3 and a ninth (19.1 dB) in E5M2. The lowest of these products has 23.1 dB, with gradients in E5M2 18.5.
pub fn asked() -> Vec<Asked> {
    let [e4m3, e5m2] = [Fp8Format::E4M3, Fp8Format::E5M2];
    let [vector, wide_vector] = [e4m3, e5m2].map(Scheme::Fp8Group1x128);
    let [tile, row, wide_row] = [Scheme::Fp8Group128x128(e4m3), Scheme::Fp8Row(e4m3), Scheme::Fp8Row(e5m2)];
    let [tensor, wide_tensor] = [e4m3, e5m2].map(Scheme::Fp8Tensor);
    let (mx, wide_mx) = (Scheme::Mxfp8(e4m3), Scheme::Mxfp8(e5m2));
    let (best, wide) = (([28.0; 3], [25.0; 3]), ([28.0, 24.0, 24.0], [25.0, 23.0, 23.0]));
    [
        ([[vector, tile], [vector, tile], [vector; 2]], best),
        ([[vector, tile], [wide_vector, tile], [wide_vector, vector]], wide),
        ([[row; 2]; 3], best),
        ([[row; 2], [wide_row, row], [wide_row, row]], wide),
        ([[tensor; 2]; 3], best),
        ([[tensor; 2], [wide_tensor, tensor], [wide_tensor, tensor]], wide),
        ([[mx; 2]; 3], (best.0, [22.0; 3])),
        ([[mx; 2], [wide_mx, mx], [wide_mx, mx]], (wide.0, [22.0, 18.0, 18.0])),
        ([[Scheme::Nvfp4Row, Scheme::Nvfp4], [Scheme::Nvfp4Row; 2], [Scheme::Nvfp4Row; 2]], ([17.0; 3], [13.0; 3])),
    ]
    .map(|(pairs, (normal, outliers))| Asked { pairs, normal, outliers })
    .into()
}

/// X, W and dY of all slots, those of each group below the other.
pub struct Tokens {
    pub x: Array2<f32>,
    pub w: Array2<f32>,
    pub dy: Array2<f32>,
}

impl Tokens {
    /// Normal numbers, or with a few that are a hundred times larger.
    pub fn new(outliers: bool) -> Self {
        let mut rng = Noise::new(49);
        let mut matrix = |rows, cols| {
            let x: Array2<f32> = rng.matrix(rows, cols, DType::Bf16);
            x.mapv(|v| if outliers && rng.below(512) == 0 { round_to(DType::Bf16, v * 100.0) } else { v })
        };
        let [x, w, dy] =
            [(GROUPS * SLOT, FEATURES), (GROUPS * OUT, FEATURES), (GROUPS * SLOT, OUT)].map(|(r, c)| matrix(r, c));
        Self { x, w, dy }
    }

    /// X, W and dY of a group, of the rows that it has.
    pub fn of(&self, g: usize) -> [ArrayView2<'_, f32>; 3] {
        let rows = s![g * SLOT..g * SLOT + COUNTS[g], ..];
        [self.x.slice(rows), self.w.slice(s![g * OUT..(g + 1) * OUT, ..]), self.dy.slice(rows)]
    }

    /// dB of Y, dX and dW of a group beside f64 sums.
    pub fn kept(&self, g: usize, found: [Array2<f32>; 3]) -> [f64; 3] {
        let [x, w, dy] = self.of(g).map(|x| x.mapv(f64::from));
        let exact = [x.dot(&w.t()), dy.dot(&w), dy.t().dot(&x)];
        let mut found = found.into_iter();
        exact.map(|exact| {
            let found = found.next().unwrap();
            assert_eq!(exact.dim(), found.dim());
            let [exact, found] = [exact.into_iter().collect::<Vec<_>>(), found.into_iter().map(f64::from).collect()];
            sqnr_db(&exact, &found)
        })
    }
}

/// dB of the three products of a group on the CPU, of the codes that its operands have alone.
pub fn kept_on_the_cpu(asked: &Asked, tokens: &Tokens, g: usize) -> [f64; 3] {
    // Rows that a product is summed over are padded with zeros to whole blocks.
    let cast = |x: ArrayView2<'_, f32>, scheme| {
        let free = x.ncols().next_multiple_of(32) - x.ncols();
        let padded = concatenate![Axis(1), x, Array2::zeros((x.nrows(), free))];
        quantize(padded.view(), DType::Bf16, Recipe::new(scheme)).unwrap()
    };
    let product = |a, b, [of_a, of_b]: [Scheme; 2], out| {
        scaled_gemm(&GemmInputs::new(&cast(a, of_a), &cast(b, of_b), out)).unwrap()
    };
    let [x, w, dy] = tokens.of(g);
    let y = product(x, w, asked.pairs[0], DType::Bf16);
    let dx = product(dy, w.t(), asked.pairs[1], DType::Bf16);
    let dw = product(dy.t(), x.t(), asked.pairs[2], DType::F32);
    tokens.kept(g, [y, dx, dw])
}

/// Panics unless each of the three keeps as much as is asked.
#[track_caller]
pub fn assert_kept(asked: &Asked, outliers: bool, kept: [f64; 3], what: &str) {
    let least = if outliers { asked.outliers } else { asked.normal };
    println!("{what}: {kept:.1?} dB");
    assert!(kept.iter().zip(&least).all(|(kept, least)| kept >= least), "{what}: {kept:.2?} dB, least {least:?}");
}
