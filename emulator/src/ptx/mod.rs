//! PTX, read: modules with their kernels, each with the functions that it calls, as one list of instructions.

mod body;
mod decode;
mod decode_async;
mod decode_convert;
pub(crate) mod kinds;
mod modifiers;
pub(crate) mod operation;
mod tokens;

use std::collections::HashMap;

use operation::Instruction;
use tokens::{Token, tokens};

/// Where generic addresses of shared memory begin, and of a thread's own memory, and of a kernel's parameters. No host allocates there.
pub(crate) const SHARED_BASE: u64 = 0x00A0_0000_0000_0000;
pub(crate) const LOCAL_BASE: u64 = 0x00B0_0000_0000_0000;
pub(crate) const PARAM_BASE: u64 = 0x00C0_0000_0000_0000;
/// The first byte of shared memory that a block has: on sm_90 a kilobyte is the system's.
pub(crate) const SHARED_FIRST: u32 = 1024;

/// A module's text, read.
pub struct Module {
    /// Its kernels.
    pub kernels: Vec<Kernel>,
    /// `.target`, major * 10 + minor: 90 of `sm_90a`.
    pub target: u32,
    /// Its own variables, at the addresses that instructions name.
    pub(crate) variables: Vec<Box<[u64]>>,
}

/// A kernel (`.entry`).
pub struct Kernel {
    /// As in the text.
    pub name: String,
    /// Place and size of each parameter in the bytes of [`crate::launch::Launch::parameters`].
    pub parameters: Vec<(usize, usize)>,
    /// Bytes of all parameters.
    pub parameter_bytes: usize,
    /// Static shared memory, bytes.
    pub shared: u32,
    /// `.maxntid`, or 1024.
    pub max_threads: u32,
    pub(crate) code: Vec<Instruction>,
    /// Where the kernel itself begins: functions that it calls lie before it.
    pub(crate) begin: u32,
    pub(crate) registers: Counts,
    /// Bytes of each thread's own memory.
    pub(crate) local: u32,
    pub(crate) functions: u32,
}

/// How many registers of each class there are.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Counts {
    pub(crate) pred: u32,
    pub(crate) r32: u32,
    pub(crate) r64: u32,
}

/// What a name outside of functions stands for.
#[derive(Clone, Copy, Debug)]
enum Global {
    /// An address of memory.
    Memory(u64),
    /// Shared memory, static: a place behind what functions have; dynamic: behind all static.
    Shared {
        at: u32,
    },
    Dynamic,
}

/// A function's head and the tokens of its body.
struct Function<'a> {
    name: &'a str,
    entry: bool,
    given: Vec<Parameter<'a>>,
    parameters: Vec<Parameter<'a>>,
    max_threads: u32,
    body: &'a [Token<'a>],
}

#[derive(Clone, Copy)]
struct Parameter<'a> {
    name: &'a str,
    bytes: usize,
    align: usize,
}

fn number(text: &str) -> Option<i64> {
    let (negative, digits) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let digits = digits.strip_suffix('U').unwrap_or(digits);
    let value = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16).ok()?,
        None => digits.parse().ok()?,
    };
    Some(if negative { (value as i64).wrapping_neg() } else { value as i64 })
}

fn bytes_of(kind: &str) -> Option<usize> {
    Some(match kind {
        ".b8" | ".u8" | ".s8" => 1,
        ".b16" | ".u16" | ".s16" | ".f16" | ".bf16" => 2,
        ".b32" | ".u32" | ".s32" | ".f32" | ".f16x2" | ".bf16x2" => 4,
        ".b64" | ".u64" | ".s64" | ".f64" => 8,
        ".b128" => 16,
        _ => return None,
    })
}

/// A run over tokens.
struct Cursor<'a> {
    tokens: &'a [Token<'a>],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn peek(&self) -> &'a str {
        self.tokens.get(self.at).map_or("", |t| t.text)
    }
    fn next(&mut self) -> &'a str {
        let text = self.peek();
        self.at += 1;
        text
    }
    fn line(&self) -> u32 {
        self.tokens.get(self.at.min(self.tokens.len().saturating_sub(1))).map_or(0, |t| t.line)
    }
    fn expect(&mut self, text: &str) -> Result<(), String> {
        let line = self.line();
        let found = self.next();
        if found == text { Ok(()) } else { Err(format!("line {line}: {text} was expected, not {found}")) }
    }
    fn done(&self) -> bool {
        self.at >= self.tokens.len()
    }
    /// Past the next one of these.
    fn skip_to(&mut self, end: &str) {
        while !self.done() && self.next() != end {}
    }
}

/// `.align 8 .b8 name[16]`, behind its space: name, bytes, alignment, bytes of an element, and whether `[]` leaves the number open.
fn variable<'a>(cursor: &mut Cursor<'a>) -> Result<(&'a str, usize, usize, usize, bool), String> {
    let (mut align, mut element) = (None, 1);
    loop {
        let line = cursor.line();
        match cursor.next() {
            ".align" => align = number(cursor.next()).map(|n| n as usize),
            ".ptr" | ".global" | ".shared" => {}
            word if word.starts_with('.') => {
                element = bytes_of(word).ok_or_else(|| format!("line {line}: {word} is no type of a variable"))?;
            }
            name => {
                let (mut count, mut open) = (1, false);
                while cursor.peek() == "[" {
                    cursor.next();
                    match cursor.peek() {
                        "]" => (count, open) = (0, true),
                        n => {
                            count *= number(n).ok_or_else(|| format!("line {line}: {n} is no length"))? as usize;
                            cursor.next();
                        }
                    }
                    cursor.expect("]")?;
                }
                return Ok((name, element * count, align.unwrap_or(element), element, open));
            }
        }
    }
}

fn parameters<'a>(cursor: &mut Cursor<'a>) -> Result<Vec<Parameter<'a>>, String> {
    let mut found = Vec::new();
    if cursor.peek() != "(" {
        return Ok(found);
    }
    cursor.next();
    loop {
        match cursor.peek() {
            ")" => {
                cursor.next();
                return Ok(found);
            }
            "," | ".param" => {
                cursor.next();
            }
            "" => return Err("parameters without an end".into()),
            _ => {
                let (name, bytes, align, ..) = variable(cursor)?;
                found.push(Parameter { name, bytes, align });
            }
        }
    }
}

impl Module {
    /// Reads PTX; the error has the line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let all = tokens(text.trim_end_matches('\0'))?;
        let mut cursor = Cursor { tokens: &all, at: 0 };
        let (mut functions, mut globals, mut variables, mut target) = (Vec::new(), HashMap::new(), Vec::new(), 0);
        let mut shared = SHARED_FIRST;
        while !cursor.done() {
            let line = cursor.line();
            match cursor.next() {
                ".version" | ".address_size" => {
                    cursor.next();
                }
                ".target" => {
                    let name = cursor.next();
                    let digits: String = name.chars().filter(char::is_ascii_digit).collect();
                    target = digits.parse().map_err(|_| format!("line {line}: {name} is no target"))?;
                    while cursor.peek() == "," {
                        cursor.next();
                        cursor.next();
                    }
                }
                ".visible" | ".weak" | ".extern" | ".common" => {}
                ".global" | ".const" => {
                    let (name, bytes, _, element, _) = variable(&mut cursor)?;
                    let mut words = vec![0u64; bytes.div_ceil(8).max(1)].into_boxed_slice();
                    if cursor.peek() == "=" {
                        cursor.next();
                        initialize(&mut cursor, &mut words, element)?;
                    }
                    cursor.expect(";")?;
                    globals.insert(name, Global::Memory(words.as_mut_ptr() as u64));
                    variables.push(words);
                }
                ".shared" => {
                    let (name, bytes, align, _, open) = variable(&mut cursor)?;
                    cursor.expect(";")?;
                    if open {
                        globals.insert(name, Global::Dynamic);
                    } else {
                        shared = shared.next_multiple_of(align as u32);
                        globals.insert(name, Global::Shared { at: shared });
                        shared += bytes as u32;
                    }
                }
                word @ (".entry" | ".func") => functions.push(function(&mut cursor, word == ".entry")?),
                word => return Err(format!("line {line}: {word} was not expected")),
            }
        }
        let mut module = Self { kernels: Vec::new(), target, variables };
        for entry in functions.iter().filter(|f| f.entry) {
            module.kernels.push(body::link(entry, &functions, &globals, shared)?);
        }
        Ok(module)
    }
}

fn initialize(cursor: &mut Cursor<'_>, words: &mut [u64], element: usize) -> Result<(), String> {
    let mut at = 0;
    loop {
        let line = cursor.line();
        let text = cursor.peek();
        match text {
            ";" | "" => return Ok(()),
            "{" | "}" | "," => {}
            _ => {
                let value = body::literal(text).ok_or_else(|| format!("line {line}: {text} is no number"))?;
                for byte in 0..element {
                    let (place, bits) = ((at + byte) / 8, (at + byte) % 8 * 8);
                    let word = words.get_mut(place).ok_or_else(|| format!("line {line}: too many numbers"))?;
                    *word |= (value >> (8 * byte) & 0xFF) << bits;
                }
                at += element;
            }
        }
        cursor.next();
    }
}

fn function<'a>(cursor: &mut Cursor<'a>, entry: bool) -> Result<Function<'a>, String> {
    let given = parameters(cursor)?;
    let name = cursor.next();
    let parameters = parameters(cursor)?;
    let mut max_threads = 1024;
    loop {
        let line = cursor.line();
        match cursor.next() {
            ".maxntid" | ".reqntid" => {
                max_threads = 1;
                loop {
                    let n = cursor.next();
                    max_threads *= number(n).ok_or_else(|| format!("line {line}: {n} threads"))? as u32;
                    if cursor.peek() != "," {
                        break;
                    }
                    cursor.next();
                }
            }
            ".minnctapersm" | ".maxnreg" | ".pragma" => {
                cursor.next();
            }
            ".noreturn" | ".explicitcluster" => {}
            // A declaration alone.
            ";" => return Ok(Function { name, entry: false, given, parameters, max_threads, body: &[] }),
            "{" => break,
            word => return Err(format!("line {line}: {word} before the body of {name}")),
        }
    }
    let from = cursor.at;
    let mut depth = 1;
    while depth > 0 {
        match cursor.next() {
            "{" => depth += 1,
            "}" => depth -= 1,
            "" => return Err(format!("{name} has no end")),
            _ => {}
        }
    }
    Ok(Function { name, entry, given, parameters, max_threads, body: &cursor.tokens[from..cursor.at - 1] })
}

impl Kernel {
    /// The instructions that cannot be run: they fail where they are reached.
    pub fn unknown(&self) -> impl Iterator<Item = &str> {
        self.code.iter().filter_map(|instruction| match &instruction.op {
            operation::Op::Unknown(text) => Some(text.as_str()),
            _ => None,
        })
    }
}
