//! FP8 matrices of layers that were fused, with a scale for each of them: whose rows are whose.

use std::fmt;

use super::listing::Listing;
use crate::error::{Error, Result};

/// The heads of a model's attention, by which the rows of a fused `qkv_proj` are known: those of queries, of keys, of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    /// Heads of queries.
    pub queries: usize,
    /// Heads of keys, and as many of values.
    pub keys: usize,
    /// Rows of each. Where it is not said, queries have as many rows in all as the matrix has columns.
    pub rows: Option<usize>,
    /// Columns of the matrix, where they are said: one of another width is of another model, as that of an image tower.
    pub cols: Option<usize>,
}

impl Heads {
    /// The rows of q, k and v in a matrix; nothing where it is not theirs.
    pub(super) fn rows_of(self, [rows, cols]: [usize; 2]) -> Option<FusedRows> {
        let Self { queries, keys, .. } = self;
        if queries == 0 || self.cols.is_some_and(|all| all != cols) {
            return None;
        }
        let each = match self.rows {
            Some(each) => each,
            None if cols.is_multiple_of(queries) => cols / queries,
            None => return None,
        };
        let (first, others) = (queries.checked_mul(each)?, keys.checked_mul(each)?);
        let all = others.checked_mul(2)?.checked_add(first)?;
        (all == rows && others > 0).then_some(FusedRows { first, others })
    }
}

/// What the config says of them, as far as it does.
impl fmt::Display for Heads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} heads of queries, {} of keys and {} of values", self.queries, self.keys, self.keys)?;
        if let Some(rows) = self.rows {
            write!(f, ", of {rows} rows each")?;
        }
        self.cols.map_or(Ok(()), |cols| write!(f, ", and matrices of {cols} columns"))
    }
}

/// Rows of the matrices in a fused one: the first has `first`, the others have as many each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FusedRows {
    pub(super) first: usize,
    pub(super) others: usize,
}

impl FusedRows {
    /// The matrix that a row is of, which is the place of its scale.
    pub(super) fn matrix_of(self, row: usize) -> usize {
        if row < self.first { 0 } else { 1 + (row - self.first) / self.others }
    }

    /// How many matrices there are in so many rows.
    pub(super) fn number(self, rows: usize) -> usize {
        self.matrix_of(rows.saturating_sub(1)) + 1
    }
}

impl Listing {
    /// Rows of each matrix in a fused one that has a scale for each: gate and up are halves; q, k and v go by the heads that the
    /// caller said.
    pub(super) fn fused_rows(
        &self,
        name: &str,
        [rows, cols]: [usize; 2],
        scales: &[usize],
    ) -> Result<Option<FusedRows>> {
        let layer = name.strip_suffix(".weight").unwrap_or(name);
        let is = |fused: &str| layer.rsplit('.').next() == Some(fused);
        let half = rows / 2;
        match scales {
            [2] if is("gate_up_proj") && half > 1 && rows.is_multiple_of(2) => {
                Ok(Some(FusedRows { first: half, others: half }))
            }
            [3] if is("qkv_proj") && rows > 3 => match self.heads.and_then(|heads| heads.rows_of([rows, cols])) {
                Some(fused) => Ok(Some(fused)),
                None => Err(self.refuse_heads(name, [rows, cols])),
            },
            _ => Ok(None),
        }
    }

    fn refuse_heads(&self, name: &str, [rows, cols]: [usize; 2]) -> Error {
        let found = format!("is {rows} x {cols} and has the scales [3], one for each of q, k and v");
        match self.heads {
            Some(heads) => {
                let why = format!("the model's config.json says that it has {heads}, which gives other rows");
                self.refuse(name, format!("{found}: {why}"), "fetch both again, or mend the config")
            }
            None => {
                let why = "which rows are whose is said by a config.json with num_attention_heads, num_key_value_heads and head_dim";
                let remedy =
                    "read the folder of the model with its config.json, or write a scale for each row, [rows, 1]";
                self.refuse(name, format!("{found}: {why}"), remedy)
            }
        }
    }
}
