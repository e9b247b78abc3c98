//! Bodies of functions: registers and places by their names, statements, and a kernel with all that it calls in one list.

use std::collections::HashMap;

use super::decode::decode;
use super::operation::{Guard, Instruction, Op, Register};
use super::{Counts, Cursor, Function, Global, Kernel, PARAM_BASE, Parameter, number, variable};

/// An operand as it is written.
#[derive(Clone, Debug)]
pub(super) enum Operand {
    Register(Register),
    Pred(Guard),
    /// `%p1|%p2`.
    Pair(Register, Register),
    Literal(u64),
    Special(String),
    /// The place that a name stands for.
    Place(u64),
    Vector(Vec<Operand>),
    Address(Box<Operand>, i64),
    /// `[%rd1, {%r1, %r2}]`.
    Box(Box<Operand>, Vec<Operand>),
}

/// The bits of a number: `0f3F800000` and `0d...` are floats', all others signed integers'.
pub(super) fn literal(text: &str) -> Option<u64> {
    if let Some(hex) = text.strip_prefix("0f").or_else(|| text.strip_prefix("0F")) {
        return u32::from_str_radix(hex, 16).ok().map(u64::from);
    }
    if let Some(hex) = text.strip_prefix("0d").or_else(|| text.strip_prefix("0D")) {
        return u64::from_str_radix(hex, 16).ok();
    }
    if text.contains('.') && text.starts_with(|c: char| c.is_ascii_digit() || c == '-') {
        return text.parse::<f32>().ok().map(|value| value.to_bits().into());
    }
    number(text).map(|n| n as u64)
}

/// Names of a function, the innermost scope last.
pub(super) struct Names<'a> {
    scopes: Vec<HashMap<&'a str, Register>>,
    /// `%r<40>`: prefix, first register, how many.
    ranges: Vec<(&'a str, Register, u32)>,
    places: HashMap<&'a str, u64>,
    counts: Counts,
    /// Bytes of a thread's own memory so far.
    local: u32,
    /// The most of it.
    peak: u32,
    /// The kernel's shared memory so far.
    shared: u32,
    /// Where dynamic shared memory begins: behind all static.
    dynamic: u32,
}

fn class(kind: &str) -> Option<u8> {
    Some(match kind {
        ".pred" => 1,
        ".b8" | ".u8" | ".s8" => 8,
        ".b16" | ".u16" | ".s16" | ".f16" | ".bf16" => 16,
        ".b32" | ".u32" | ".s32" | ".f32" | ".f16x2" | ".bf16x2" => 32,
        ".b64" | ".u64" | ".s64" | ".f64" => 64,
        _ => return None,
    })
}

impl<'a> Names<'a> {
    fn new_registers(&mut self, bits: u8, count: u32) -> Register {
        match bits {
            1 => {
                self.counts.pred += count;
                Register::Pred(self.counts.pred - count)
            }
            64 => {
                self.counts.r64 += count;
                Register::R64(self.counts.r64 - count)
            }
            _ => {
                self.counts.r32 += count;
                Register::R32(self.counts.r32 - count)
            }
        }
    }

    fn register(&self, name: &str) -> Option<Register> {
        if let Some(&found) = self.scopes.iter().rev().find_map(|scope| scope.get(name)) {
            return Some(found);
        }
        let digits = name.len() - name.bytes().rev().take_while(u8::is_ascii_digit).count();
        let (prefix, index) = (&name[..digits], name[digits..].parse::<u32>().ok()?);
        let &(_, first, _) = self.ranges.iter().rev().find(|r| r.0 == prefix && index < r.2)?;
        Some(match first {
            Register::Pred(n) => Register::Pred(n + index),
            Register::R32(n) => Register::R32(n + index),
            Register::R64(n) => Register::R64(n + index),
            Register::Sink => return None,
        })
    }

    fn declare(&mut self, cursor: &mut Cursor<'a>) -> Result<(), String> {
        let line = cursor.line();
        let kind = cursor.next();
        let bits = class(kind).ok_or_else(|| format!("line {line}: registers of type {kind}"))?;
        loop {
            let name = cursor.next();
            if cursor.peek() == "<" {
                cursor.next();
                let count = number(cursor.next()).ok_or_else(|| format!("line {line}: no number of registers"))? as u32;
                cursor.expect(">")?;
                let first = self.new_registers(bits, count);
                self.ranges.push((name, first, count));
            } else {
                let register = self.new_registers(bits, 1);
                self.scopes.last_mut().expect("a scope").insert(name, register);
            }
            match cursor.next() {
                "," => {}
                ";" => return Ok(()),
                word => return Err(format!("line {line}: {word} among registers")),
            }
        }
    }

    fn reserve(&mut self, parameter: &Parameter<'a>) -> u32 {
        self.local = self.local.next_multiple_of(parameter.align.max(1) as u32);
        let at = self.local;
        self.local += parameter.bytes as u32;
        self.peak = self.peak.max(self.local);
        self.places.insert(parameter.name, u64::from(at));
        at
    }

    fn operand(&self, cursor: &mut Cursor<'a>) -> Result<Operand, String> {
        let line = cursor.line();
        match cursor.next() {
            "{" => {
                let mut parts = Vec::new();
                loop {
                    match cursor.peek() {
                        "," => {
                            cursor.next();
                        }
                        "}" => {
                            cursor.next();
                            return Ok(Operand::Vector(parts));
                        }
                        _ => parts.push(self.operand(cursor)?),
                    }
                }
            }
            "[" => {
                let base = self.operand(cursor)?;
                let mut offset = 0;
                if cursor.peek() == "+" {
                    cursor.next();
                    let text = cursor.next();
                    offset = number(text).ok_or_else(|| format!("line {line}: offset {text}"))?;
                }
                if cursor.peek() == "," {
                    cursor.next();
                    let Operand::Vector(at) = self.operand(cursor)? else {
                        return Err(format!("line {line}: coordinates were expected"));
                    };
                    cursor.expect("]")?;
                    return Ok(Operand::Box(Box::new(base), at));
                }
                cursor.expect("]")?;
                Ok(Operand::Address(Box::new(base), offset))
            }
            "!" => match self.operand(cursor)? {
                Operand::Pred(p) => Ok(Operand::Pred(Guard { negated: true, ..p })),
                other => Err(format!("line {line}: ! before {other:?}")),
            },
            text => {
                let found = if text == "_" {
                    Operand::Register(Register::Sink)
                } else if let Some(register) = self.register(text) {
                    match register {
                        Register::Pred(pred) => Operand::Pred(Guard { pred, negated: false }),
                        _ => Operand::Register(register),
                    }
                } else if let Some(value) = literal(text) {
                    Operand::Literal(value)
                } else if text.starts_with('%') {
                    Operand::Special(text.to_string())
                } else if let Some(&place) = self.places.get(text) {
                    Operand::Place(place)
                } else {
                    return Err(format!("line {line}: {text} is not known"));
                };
                if cursor.peek() == "|" {
                    cursor.next();
                    let second = self.operand(cursor)?;
                    let register = |operand: &Operand| match *operand {
                        Operand::Register(r) => Some(r),
                        Operand::Pred(p) => Some(Register::Pred(p.pred)),
                        _ => None,
                    };
                    return match (register(&found), register(&second)) {
                        (Some(a), Some(b)) => Ok(Operand::Pair(a, b)),
                        _ => Err(format!("line {line}: {found:?}|{second:?}")),
                    };
                }
                Ok(found)
            }
        }
    }
}

/// Places and bytes of what a function gives and takes in each thread's own memory, and where its code begins.
struct Head {
    given: Vec<(u32, u32)>,
    parameters: Vec<(u32, u32)>,
    begin: u32,
}

/// A kernel and the functions that it calls, those first: lanes that are in one are run before those that wait for them behind the call.
pub(super) fn link<'a>(
    entry: &Function<'a>,
    all: &[Function<'a>],
    globals: &HashMap<&'a str, Global>,
    shared: u32,
) -> Result<Kernel, String> {
    let mut names = Names {
        scopes: Vec::new(),
        ranges: Vec::new(),
        places: HashMap::new(),
        counts: Counts::default(),
        local: 0,
        peak: 0,
        shared,
        dynamic: 0,
    };
    let called = called(entry, all);
    names.dynamic = shared;
    for function in called.iter().copied().chain([entry]) {
        let mut cursor = Cursor { tokens: function.body, at: 0 };
        while !cursor.done() {
            if cursor.next() == ".shared" {
                let (_, bytes, align, ..) = variable(&mut cursor)?;
                names.dynamic = names.dynamic.next_multiple_of(align as u32) + bytes as u32;
            }
        }
    }
    names.dynamic = names.dynamic.next_multiple_of(16);
    let mut heads: HashMap<&str, Head> = HashMap::new();
    let mut code = Vec::new();
    let mut open = Vec::new();
    for (number, function) in called.iter().enumerate() {
        // The name of a result is the same in each function.
        let given = function.given.iter().map(|p| (names.reserve(p), p.bytes as u32)).collect();
        let parameters = function.parameters.iter().map(|p| (names.reserve(p), p.bytes as u32)).collect();
        heads.insert(function.name, Head { given, parameters, begin: code.len() as u32 });
        statements(function, number as u32, &mut names, globals, &mut code, &mut open)?;
    }
    let begin = code.len() as u32;
    let (mut parameters, mut bytes) = (Vec::new(), 0usize);
    for parameter in &entry.parameters {
        bytes = bytes.next_multiple_of(parameter.align.max(1));
        parameters.push((bytes, parameter.bytes));
        names.places.insert(parameter.name, PARAM_BASE + bytes as u64);
        bytes += parameter.bytes;
    }
    statements(entry, u32::MAX, &mut names, globals, &mut code, &mut open)?;
    // What falls off its end.
    code.push(Instruction { guard: None, op: Op::Exit, line: 0 });
    for (at, arguments, given, name) in open {
        let line = code[at as usize].line;
        let Some(head) = heads.get(name) else {
            return Err(format!("line {line}: {name} is called and not there"));
        };
        let function = called.iter().position(|f| f.name == name).expect("a head is of a function") as u32;
        let pairs = |places: &[u32], slots: &[(u32, u32)]| {
            places.iter().zip(slots).map(|(&place, &(slot, bytes))| (place, slot, bytes)).collect::<Vec<_>>()
        };
        let back = pairs(&given, &head.given).into_iter().map(|(place, slot, bytes)| (slot, place, bytes)).collect();
        code[at as usize].op =
            Op::Call { to: head.begin, back: at + 1, function, copies: pairs(&arguments, &head.parameters) };
        code[at as usize + 1].op = Op::Given { copies: back };
    }
    Ok(Kernel {
        name: entry.name.to_string(),
        parameters,
        parameter_bytes: bytes,
        shared: names.dynamic - super::SHARED_FIRST,
        max_threads: entry.max_threads,
        code,
        begin,
        registers: names.counts,
        local: names.peak.next_multiple_of(16),
        functions: called.len() as u32,
    })
}

/// The functions that are called, by those that are called too, each behind those that it calls.
fn called<'f, 'a>(entry: &Function<'a>, all: &'f [Function<'a>]) -> Vec<&'f Function<'a>> {
    fn visit<'f, 'a>(function: &Function<'a>, all: &'f [Function<'a>], found: &mut Vec<&'f Function<'a>>) {
        for token in function.body {
            if let Some(callee) = all.iter().find(|f| !f.entry && f.name == token.text && !f.body.is_empty())
                && !found.iter().any(|f| f.name == callee.name)
                && callee.name != function.name
            {
                visit(callee, all, found);
                if !found.iter().any(|f| f.name == callee.name) {
                    found.push(callee);
                }
            }
        }
    }
    let mut found = Vec::new();
    visit(entry, all, &mut found);
    found
}

/// Calls whose function is not yet placed: the instruction, places of arguments and of results, the name.
type Calls<'a> = Vec<(u32, Vec<u32>, Vec<u32>, &'a str)>;

fn statements<'a>(
    function: &Function<'a>,
    number_of: u32,
    names: &mut Names<'a>,
    globals: &HashMap<&'a str, Global>,
    code: &mut Vec<Instruction>,
    calls: &mut Calls<'a>,
) -> Result<(), String> {
    let mut cursor = Cursor { tokens: function.body, at: 0 };
    // Labels by the braces that they are in, and branches with all braces around them.
    let mut labels: HashMap<(u32, &str), u32> = HashMap::new();
    let mut branches: Vec<(usize, &str, Vec<u32>)> = Vec::new();
    let (mut around, mut braces) = (vec![0], 0);
    let mut before = Vec::new();
    names.scopes = vec![HashMap::new()];
    names.ranges.clear();
    for (&name, &global) in globals {
        let place = match global {
            Global::Memory(address) => address,
            Global::Shared { at } => u64::from(at),
            Global::Dynamic => u64::from(names.dynamic),
        };
        names.places.insert(name, place);
    }
    while !cursor.done() {
        let line = cursor.line();
        let word = cursor.next();
        match word {
            "{" => {
                names.scopes.push(HashMap::new());
                before.push((names.local, names.ranges.len()));
                braces += 1;
                around.push(braces);
            }
            "}" => {
                names.scopes.pop();
                around.pop();
                // What a call's parameters lay in is free for the next one's.
                let ranges;
                (names.local, ranges) = before.pop().unwrap_or((names.local, 0));
                names.ranges.truncate(ranges);
            }
            ";" => {}
            ".reg" => names.declare(&mut cursor)?,
            ".pragma" | ".loc" | ".file" => cursor.skip_to(";"),
            ".local" | ".param" => {
                let (name, bytes, align, ..) = variable(&mut cursor)?;
                names.reserve(&Parameter { name, bytes, align });
                cursor.expect(";")?;
            }
            ".shared" => {
                let (name, bytes, align, _, open) = variable(&mut cursor)?;
                cursor.expect(";")?;
                if open {
                    names.places.insert(name, u64::from(names.dynamic));
                } else {
                    names.shared = names.shared.next_multiple_of(align as u32);
                    names.places.insert(name, u64::from(names.shared));
                    names.shared += bytes as u32;
                }
            }
            _ if cursor.peek() == ":" => {
                cursor.next();
                labels.insert((around.last().copied().unwrap_or(0), word), code.len() as u32);
            }
            _ => {
                let mut opcode = word;
                let mut guard = None;
                if word == "@" {
                    match names.operand(&mut cursor)? {
                        Operand::Pred(p) => guard = Some(p),
                        other => return Err(format!("line {line}: @ before {other:?}")),
                    }
                    opcode = cursor.next();
                }
                if opcode == "bra" || opcode == "bra.uni" {
                    branches.push((code.len(), cursor.next(), around.clone()));
                    cursor.expect(";")?;
                    code.push(Instruction { guard, op: Op::Nop, line });
                } else if opcode == "call" || opcode == "call.uni" {
                    let (name, arguments, given) = call(&mut cursor)?;
                    let place = |names: &Names<'a>, name: &&str| {
                        names.places.get(*name).map(|&p| p as u32).ok_or_else(|| format!("line {line}: {name}"))
                    };
                    let arguments = arguments.iter().map(|n| place(names, n)).collect::<Result<_, _>>()?;
                    let given = given.iter().map(|n| place(names, n)).collect::<Result<_, _>>()?;
                    calls.push((code.len() as u32, arguments, given, name));
                    code.push(Instruction { guard, op: Op::Nop, line });
                    code.push(Instruction { guard, op: Op::Nop, line });
                } else {
                    let mut operands = Vec::new();
                    while cursor.peek() != ";" {
                        if cursor.done() {
                            return Err(format!("line {line}: {opcode} has no end"));
                        }
                        if cursor.peek() == "," {
                            cursor.next();
                        } else {
                            operands.push(names.operand(&mut cursor)?);
                        }
                    }
                    cursor.next();
                    let op = decode(opcode, &operands, number_of)
                        .unwrap_or_else(|| Op::Unknown(format!("{opcode} {operands:?}")));
                    code.push(Instruction { guard, op, line });
                }
            }
        }
    }
    // What its calls pass lies behind all that callers have: they are at work still.
    names.local = names.peak;
    for (at, label, around) in branches {
        let place = around.iter().rev().find_map(|&brace| labels.get(&(brace, label)));
        let to = *place.ok_or_else(|| format!("line {}: label {label} is not there", code[at].line))?;
        code[at].op = Op::Bra { to };
    }
    if number_of != u32::MAX {
        code.push(Instruction { guard: None, op: Op::Ret { function: number_of }, line: 0 });
    }
    Ok(())
}

/// `(retval0), name, (param0, param1);`, of which only the name must be there.
fn call<'a>(cursor: &mut Cursor<'a>) -> Result<(&'a str, Vec<&'a str>, Vec<&'a str>), String> {
    let mut lists: Vec<Vec<&str>> = Vec::new();
    let (mut name, mut before) = (None, 0);
    loop {
        let line = cursor.line();
        match cursor.next() {
            ";" => break,
            "," => {}
            "(" => {
                let mut list = Vec::new();
                loop {
                    match cursor.next() {
                        ")" => break,
                        "," => {}
                        "" => return Err(format!("line {line}: a call without an end")),
                        word => list.push(word),
                    }
                }
                lists.push(list);
            }
            "" => return Err(format!("line {line}: a call without an end")),
            word => {
                name = Some(word);
                before = lists.len();
            }
        }
    }
    let name = name.ok_or("a call of nothing")?;
    let arguments = lists.get(before).cloned().unwrap_or_default();
    let given = if before > 0 { lists[0].clone() } else { Vec::new() };
    Ok((name, arguments, given))
}
