//! Products of matrices by a warp or, a warp's rows at a time, by a warpgroup. Sums are rounded once for each instruction, to the
//! nearest: a GPU keeps fewer bits, so that results differ from its own within what tests allow.

use std::sync::LazyLock;

use super::block::Block;
use super::numbers::{bits, f, of_bf16, of_e4m3, of_e5m2, of_f16};
use super::warp::{LANES, Warp};
use crate::ptx::operation::{Address, Element, Guard, S32, S64};

fn value(of: Element, code: u32) -> f32 {
    match of {
        Element::F16 => of_f16(code),
        Element::Bf16 => of_bf16(code),
        Element::E4m3 => of_e4m3(code),
        Element::E5m2 => of_e5m2(code),
    }
}

/// The values of all codes of a byte, made once; none of halves.
fn table(of: Element) -> Option<&'static [f32; 256]> {
    static E4M3: LazyLock<[f32; 256]> = LazyLock::new(|| std::array::from_fn(|code| of_e4m3(code as u32)));
    static E5M2: LazyLock<[f32; 256]> = LazyLock::new(|| std::array::from_fn(|code| of_e5m2(code as u32)));
    match of {
        Element::F16 | Element::Bf16 => None,
        Element::E4m3 => Some(&E4M3),
        Element::E5m2 => Some(&E5M2),
    }
}

/// Two halves of a word.
fn pair(of: Element, word: u32) -> [f32; 2] {
    [value(of, word & 0xFFFF), value(of, word >> 16)]
}

/// The sum, rounded once: products of two such numbers are exact in a double.
fn sum(first: f32, a: &[f32], b: &[f32]) -> f32 {
    let mut all = f64::from(first);
    for (&a, &b) in a.iter().zip(b) {
        all += f64::from(a) * f64::from(b);
    }
    f(bits(all as f32))
}

impl Warp {
    pub(super) fn mma(&mut self, of: Element, d: &[u32; 4], a: &[S32; 4], b: &[S32; 2], c: &[S32; 4]) {
        let rows = self.rows_of_a(of, a);
        let b = b.map(|source| self.get32(source));
        let c = c.map(|source| self.get32(source));
        // Column n of lanes 4 n to 4 n + 3.
        let mut columns = [[0f32; 16]; 8];
        for l in 0..LANES {
            for (half, words) in b.iter().enumerate() {
                let at = 8 * half + 2 * (l % 4);
                columns[l / 4][at..at + 2].copy_from_slice(&pair(of, words[l]));
            }
        }
        for n in 0..4 {
            let result = std::array::from_fn(|l| {
                let (row, column) = (l / 4 + n / 2 * 8, 2 * (l % 4) + n % 2);
                sum(f(c[n][l]), &rows[row], &columns[column]).to_bits()
            });
            self.set32(u32::MAX, d[n], &result);
        }
    }

    /// 16 rows of 16 from the registers of a warp.
    fn rows_of_a(&self, of: Element, a: &[S32; 4]) -> [[f32; 16]; 16] {
        let a = a.map(|source| self.get32(source));
        let mut rows = [[0f32; 16]; 16];
        for l in 0..LANES {
            for (n, words) in a.iter().enumerate() {
                let (row, at) = (l / 4 + n % 2 * 8, n / 2 * 8 + 2 * (l % 4));
                rows[row][at..at + 2].copy_from_slice(&pair(of, words[l]));
            }
        }
        rows
    }

    #[expect(clippy::too_many_arguments, reason = "the operands of the instruction")]
    pub(super) fn wgmma(
        &mut self,
        block: &Block<'_>,
        of: (Element, Element),
        columns: u32,
        d: &[u32],
        a: &Result<S64, [S32; 4]>,
        b: S64,
        add: Guard,
    ) -> Result<(), String> {
        let add = self.guard(add) & 1 != 0;
        let b = described(block, of.1, self.get64(b)[0], columns as usize)?;
        let rows: Vec<Vec<f32>> = match a {
            Err(registers) => self.rows_of_a(of.0, registers).iter().map(|row| row.to_vec()).collect(),
            Ok(descriptor) => {
                let all = described(block, of.0, self.get64(*descriptor)[0], 64)?;
                let first = (self.number % 4 * 16) as usize;
                all[first..first + 16].to_vec()
            }
        };
        for (n, &register) in d.iter().enumerate() {
            let before = self.r32[register as usize];
            let result = std::array::from_fn(|l| {
                let (row, column) = (l / 4 + n / 2 % 2 * 8, n / 4 * 8 + 2 * (l % 4) + n % 2);
                let first = if add { f(before[l]) } else { 0.0 };
                sum(first, &rows[row], &b[column]).to_bits()
            });
            self.set32(u32::MAX, register, &result);
        }
        Ok(())
    }

    /// Each lane's address is one of eight bytes' rows: lanes 8 n to 8 n + 7 for matrix n.
    pub(super) fn load_matrices(
        &mut self,
        block: &Block<'_>,
        d: &[u32],
        at: Address,
        transposed: bool,
    ) -> Result<(), String> {
        let addresses = self.addresses(at);
        for (n, &register) in d.iter().enumerate() {
            let mut matrix = [[0u16; 8]; 8];
            for (row, values) in matrix.iter_mut().enumerate() {
                let (rank, place) = block.own_place(addresses[8 * n + row], 16)?;
                for (column, value) in values.iter_mut().enumerate() {
                    let bytes = &block.cluster.shared[rank][place + 2 * column..][..2];
                    *value = u16::from_le_bytes([bytes[0], bytes[1]]);
                }
            }
            let at = |row: usize, column: usize| {
                u32::from(if transposed { matrix[column][row] } else { matrix[row][column] })
            };
            let words = std::array::from_fn(|l| at(l / 4, 2 * (l % 4)) | at(l / 4, 2 * (l % 4) + 1) << 16);
            self.set32(u32::MAX, register, &words);
        }
        Ok(())
    }

    pub(super) fn store_matrices(
        &mut self,
        block: &mut Block<'_>,
        a: &[S32],
        at: Address,
        transposed: bool,
    ) -> Result<(), String> {
        let addresses = self.addresses(at);
        for (n, &source) in a.iter().enumerate() {
            let words = self.get32(source);
            let value = |row: usize, column: usize| (words[4 * row + column / 2] >> (16 * (column % 2))) as u16;
            for row in 0..8 {
                let (rank, place) = block.own_place(addresses[8 * n + row], 16)?;
                for column in 0..8 {
                    let value = if transposed { value(column, row) } else { value(row, column) };
                    block.cluster.shared[rank][place + 2 * column..][..2].copy_from_slice(&value.to_le_bytes());
                }
            }
        }
        Ok(())
    }
}

/// Rows of 32 bytes that a descriptor of shared memory names, with 128-byte swizzle: eight rows of 128 bytes after another, of which
/// the start names the first bytes.
fn described(block: &Block<'_>, of: Element, descriptor: u64, rows: usize) -> Result<Vec<Vec<f32>>, String> {
    if descriptor >> 62 != 1 || descriptor >> 49 & 7 != 0 {
        return Err(format!("descriptor {descriptor:#x}: no swizzle of 128 bytes that begins at a multiple of 1024"));
    }
    let (start, stride) = ((descriptor & 0x3FFF) << 4, (descriptor >> 32 & 0x3FFF) << 4);
    let table = table(of);
    let mut found = Vec::with_capacity(rows);
    for row in 0..rows as u64 {
        let mut values = Vec::with_capacity(32);
        for part in 0..2 {
            let address = start + row / 8 * stride + row % 8 * 128 + 16 * part;
            let swizzled = address ^ (address >> 7 & 7) << 4;
            let (rank, at) = block.own_place(swizzled, 16)?;
            let bytes = &block.cluster.shared[rank][at..at + 16];
            match table {
                Some(table) => values.extend(bytes.iter().map(|&code| table[code as usize])),
                None => {
                    values.extend(bytes.chunks_exact(2).map(|b| value(of, u32::from(u16::from_le_bytes([b[0], b[1]])))))
                }
            }
        }
        found.push(values);
    }
    Ok(found)
}
