//! Shapes by name or by numbers.

use std::num::IntErrorKind;

use scaled_gemm::models::MODELS;

use crate::output::Failure;

/// One weight shape, with the rows of A where they are given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub m: Option<usize>,
    pub n: usize,
    pub k: usize,
}

/// What `--shapes` parses to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShapeList(pub Vec<Shape>);

/// Largest extent accepted: beyond it buffers are certain not to fit.
const LARGEST: usize = 1 << 20;

/// Parses a comma-separated list of preset names, `MxNxK` and `NxK`.
pub fn parse_shapes(text: &str) -> Result<ShapeList, String> {
    let mut shapes = Vec::new();
    for item in text.split(',') {
        if let Some((_, list)) = MODELS.iter().find(|(name, _)| *name == item) {
            shapes.extend(list.iter().map(|&(n, k)| Shape { m: None, n, k }));
        } else {
            shapes.push(parse_shape(item)?);
        }
    }
    Ok(ShapeList(shapes))
}

/// Rows of A, for shapes that do not give them.
pub fn parse_m(text: &str) -> Result<u32, String> {
    let m = text.parse().ok().filter(|m| (1..=LARGEST as u32).contains(m));
    m.ok_or_else(|| format!("write a whole number from 1 to {LARGEST}, or several with commas between them"))
}

fn parse_shape(item: &str) -> Result<Shape, String> {
    let number = |digits: &str| match digits.parse::<usize>() {
        Ok(number) => Some(number),
        Err(e) => (*e.kind() == IntErrorKind::PosOverflow).then_some(usize::MAX),
    };
    let numbers: Option<Vec<usize>> = item.split('x').map(number).collect();
    let shape = match numbers.as_deref() {
        Some(&[m, n, k]) => Shape { m: Some(m), n, k },
        Some(&[n, k]) => Shape { m: None, n, k },
        _ => {
            let names: Vec<_> = MODELS.iter().map(|(name, _)| *name).collect();
            return Err(format!("{item:?} is neither {} nor MxNxK nor NxK", names.join(", ")));
        }
    };
    if [shape.m.unwrap_or(1), shape.n, shape.k].iter().any(|&d| d == 0 || d > LARGEST) {
        return Err(format!("{item}: every extent must be from 1 to {LARGEST}"));
    }
    Ok(shape)
}

impl ShapeList {
    /// Refuses rows of A that no shape would take.
    ///
    /// # Errors
    /// [`Failure::Use`] if some were given, and every shape has its own.
    pub fn check_ms(&self, ms: &[u32]) -> Result<(), Failure> {
        if ms.is_empty() || self.0.iter().any(|shape| shape.m.is_none()) {
            return Ok(());
        }
        Err(Failure::Use("--m: every shape of --shapes gives its own m (MxNxK); leave it out, or give NxK".into()))
    }

    /// Every (m, n, k): shapes without m with each of `ms`, kept together by (n, k).
    pub fn problems(&self, ms: &[usize]) -> Vec<[usize; 3]> {
        let expand = |s: &Shape| match s.m {
            Some(m) => vec![[m, s.n, s.k]],
            None => ms.iter().map(|&m| [m, s.n, s.k]).collect(),
        };
        self.0.iter().flat_map(expand).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_and_numbers() {
        assert_eq!(parse_shapes("qwen3,16x8x32").unwrap().0.len(), 7);
        let list = parse_shapes("8x32,3x8x16").unwrap();
        assert_eq!(list.problems(&[1, 2]), [[1, 8, 32], [2, 8, 32], [3, 8, 16]]);
        for bad in ["", "llama9", "1x2x3x4", "0x8x16", "8x", "99999999x8", "-1x8x16"] {
            assert!(parse_shapes(bad).is_err(), "{bad}");
        }
    }
}
