//! Rows of items: of a tensor by its place, of an expert by a transposed copy of that expert alone.

use std::ops::Range;

use scaled_gemm::DType;
use scaled_gemm::checkpoint::{Checkpoint, PlainRows};

use super::items::{Item, Slice};
use crate::output::Failure;

/// Columns of the input that are turned at a time: what they touch stays in the cache.
const STRIP: usize = 16;

/// Reads rows of items. Holds the expert that was read last, where its rows are columns of the file.
pub struct Rows<'a> {
    input: &'a Checkpoint,
    /// The place of its tensor, its number, its bytes.
    expert: Option<(usize, usize, Vec<u8>)>,
}

impl<'a> Rows<'a> {
    pub fn new(input: &'a Checkpoint) -> Self {
        Self { input, expert: None }
    }

    pub fn input(&self) -> &'a Checkpoint {
        self.input
    }

    /// These rows of an item, in `buffer`, whose bytes are replaced.
    pub fn read(
        &mut self,
        item: &Item,
        source: DType,
        rows: Range<usize>,
        mut buffer: Vec<u8>,
    ) -> Result<PlainRows, Failure> {
        let Some(slice) = item.slice else { return Ok(self.input.plain_rows(&item.name, rows, buffer)?) };
        self.fill(item, slice, source.bytes(), rows.clone(), &mut buffer)?;
        Ok(PlainRows::new(source, rows.len(), slice.all[1], buffer)?)
    }

    /// Their bytes, elements of `size` bytes: row after row, whatever the order in the file.
    fn fill(
        &mut self,
        item: &Item,
        slice: Slice,
        size: usize,
        rows: Range<usize>,
        bytes: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        let Slice { experts: [first, _], rows: [start, step, each], all: [all, cols], transposed } = slice;
        bytes.resize(rows.len() * cols * size, 0);
        let mut at = rows.start;
        while at < rows.end {
            // Those of one expert.
            let end = rows.end.min((at / each + 1) * each);
            let (expert, from) = (first + at / each, start + at % each * step);
            let out = &mut bytes[(at - rows.start) * cols * size..(end - rows.start) * cols * size];
            if transposed {
                let block = self.expert(item.tensor, expert, all * cols * size)?;
                turn(block, all * size, from * size, step * size, size, cols, out);
            } else {
                let name = &self.input.tensors()[item.tensor].name;
                let place = |row: usize| ((expert * all + row) * cols * size) as u64;
                match step {
                    1 => self.input.read(name, place(from), out)?,
                    _ => out
                        .chunks_mut(cols * size)
                        .enumerate()
                        .try_for_each(|(i, row)| self.input.read(name, place(from + i * step), row))?,
                }
            }
            at = end;
        }
        Ok(())
    }

    /// The bytes of one expert of a tensor.
    fn expert(&mut self, tensor: usize, expert: usize, len: usize) -> Result<&[u8], Failure> {
        let held = self.expert.take();
        let bytes = match held {
            Some((at, number, bytes)) if (at, number) == (tensor, expert) => bytes,
            held => {
                // Memory of one that is done with is used again.
                let mut bytes = held.map(|(.., bytes)| bytes).unwrap_or_default();
                bytes.resize(len, 0);
                self.input.read(&self.input.tensors()[tensor].name, (expert * len) as u64, &mut bytes)?;
                bytes
            }
        };
        Ok(&self.expert.insert((tensor, expert, bytes)).2)
    }
}

/// Columns of `block` as rows of `cols` elements of `size` bytes: row `i` begins at byte `from + i * step`, and goes on every
/// `pitch` bytes.
fn turn(block: &[u8], pitch: usize, from: usize, step: usize, size: usize, cols: usize, out: &mut [u8]) {
    match size {
        2 => turn_by::<2>(block, pitch, from, step, cols, out),
        _ => turn_by::<4>(block, pitch, from, step, cols, out),
    }
}

fn turn_by<const SIZE: usize>(block: &[u8], pitch: usize, from: usize, step: usize, cols: usize, out: &mut [u8]) {
    for first in (0..cols).step_by(STRIP) {
        for (i, row) in out.chunks_exact_mut(cols * SIZE).enumerate() {
            let (strip, _) = row[first * SIZE..].as_chunks_mut::<SIZE>();
            let place = from + i * step;
            for (j, to) in strip.iter_mut().take(STRIP).enumerate() {
                let at = (first + j) * pitch + place;
                to.copy_from_slice(&block[at..at + SIZE]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_become_rows() {
        let (rows, cols) = (6, 37);
        // [cols, rows], element c * 100 + r.
        let block: Vec<u8> =
            (0..cols).flat_map(|c| (0..rows).flat_map(move |r| (c as u16 * 100 + r as u16).to_le_bytes())).collect();
        let mut out = vec![0; 3 * cols * 2];
        turn(&block, rows * 2, 2, 4, 2, cols, &mut out);
        let found: Vec<u16> = out.as_chunks::<2>().0.iter().map(|b| u16::from_le_bytes(*b)).collect();
        let want: Vec<u16> = [1u16, 3, 5].iter().flat_map(|r| (0..cols as u16).map(move |c| c * 100 + r)).collect();
        assert_eq!(found, want);
    }
}
