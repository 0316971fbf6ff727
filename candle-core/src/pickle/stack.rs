//! The machine that runs a pickle. It builds values and calls nothing.

mod other;

use std::collections::HashMap;
use std::io::{BufRead, Read};
use std::sync::OnceLock;

use super::graph::{Graph, Id, Node};
use super::opcode::OtherOpCode;
use super::{Object, OpCode};
use crate::bounded_read::{read_array, read_bytes};
use crate::{Error, Result};

/// Maximum length of the name of a module or a class, in bytes.
const MAX_NAME: u64 = 4096;

/// Maximum number of items copied between containers, per byte of the pickle.
const COPIES_PER_BYTE: u64 = 16;

/// The stack of a pickle while it is read.
///
/// ```
/// use candle_core::pickle::{Object, Stack};
/// # fn main() -> candle_core::Result<()> {
/// // pickle.dumps((1, "a"), protocol=2)
/// let mut pickle: &[u8] = b"\x80\x02K\x01X\x01\x00\x00\x00aq\x00\x86q\x01.";
/// let mut stack = Stack::empty();
/// stack.read_loop(&mut pickle)?;
/// assert_eq!(
///     stack.finalize()?,
///     Object::Tuple(vec![Object::Int(1), Object::Unicode("a".to_string())])
/// );
/// # Ok(())
/// # }
/// ```
pub struct Stack {
    graph: Graph,
    stack: Vec<Id>,
    memo: HashMap<u32, Id>,
    /// Bytes read so far.
    position: u64,
    /// Items copied so far.
    copied: u64,
    /// The stack as trees, until it changes.
    shown: OnceLock<Vec<Object>>,
}

impl std::fmt::Debug for Stack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = f.debug_struct("Stack");
        debug.field("stack", &self.stack());
        debug
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}

/// A reader that counts bytes.
struct Counted<'a, R> {
    reader: &'a mut R,
    position: &'a mut u64,
}

impl<R: BufRead> Read for Counted<'_, R> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let len = self.reader.read(buf)?;
        *self.position += len as u64;
        Ok(len)
    }
}

impl<R: BufRead> Counted<'_, R> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        read_array(self).map_err(Error::msg)
    }

    fn block(&mut self, len: usize) -> Result<Vec<u8>> {
        read_bytes(self, len, 0).map_err(Error::msg)
    }

    fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn text(&mut self, len: u64) -> Result<Box<str>> {
        let bytes = self.block(usize::try_from(len)?)?;
        Ok(String::from_utf8(bytes)?.into_boxed_str())
    }

    /// Bytes as Latin-1 characters, whose code points equal the bytes.
    fn latin1(&mut self, len: u64) -> Result<Box<str>> {
        let bytes = self.block(usize::try_from(len)?)?;
        Ok(bytes.into_iter().map(char::from).collect::<String>().into())
    }

    fn line(&mut self) -> Result<Box<str>> {
        let mut line = vec![];
        let mut bounded = self.reader.take(MAX_NAME);
        *self.position += bounded.read_until(b'\n', &mut line)? as u64;
        if line.pop() != Some(b'\n') {
            crate::bail!("a name is longer than {MAX_NAME} bytes")
        }
        Ok(String::from_utf8(line)?.into_boxed_str())
    }
}

impl Stack {
    /// A machine before its first instruction.
    pub fn empty() -> Self {
        Self {
            graph: Graph::new(),
            stack: vec![],
            memo: HashMap::new(),
            position: 0,
            copied: 0,
            shown: OnceLock::new(),
        }
    }

    /// The objects on the stack, the top last. Values that are nested too deep, or too large together, appear as [`Object::None`];
    /// [`Stack::finalize`] returns the error.
    pub fn stack(&self) -> &[Object] {
        self.shown
            .get_or_init(|| self.graph.trees(&self.stack, self.position))
    }

    /// Reads one instruction; returns whether it was the last.
    ///
    /// # Errors
    /// If the pickle ends before it, is damaged, or uses an instruction of protocol 0 or 1; the error names the instruction and its
    /// position.
    pub fn read<R: BufRead>(&mut self, r: &mut R) -> Result<bool> {
        self.shown.take();
        let at = self.position;
        let mut reader = Counted {
            reader: r,
            position: &mut self.position,
        };
        let in_pickle = |err: Error, op: &str| err.context(format!("pickle: {op} at byte {at}"));
        let code = reader.u8().map_err(|err| in_pickle(err, "op-code"))?;
        let op = match (OpCode::try_from(code), OtherOpCode::try_from(code)) {
            (Ok(op), _) => op,
            (_, Ok(op)) => {
                let name = format!("{op:?}");
                return match self.run_other(op, r) {
                    Ok(()) => Ok(false),
                    Err(err) => Err(in_pickle(err, &name)),
                };
            }
            _ => {
                let hint = "not part of protocols 2 to 5; save with pickle_protocol=2, or the file is damaged";
                return Err(in_pickle(Error::msg(hint), &format!("op-code {code:#04x}")));
            }
        };
        let name = format!("{op:?}");
        let done = op == OpCode::Stop;
        self.run(op, r).map_err(|err| in_pickle(err, &name))?;
        Ok(done)
    }

    /// Reads instructions up to the last.
    ///
    /// # Errors
    /// As [`Stack::read`].
    pub fn read_loop<R: BufRead>(&mut self, r: &mut R) -> Result<()> {
        while !self.read(r)? {}
        Ok(())
    }

    /// The value of the pickle.
    ///
    /// # Errors
    /// If there is none, or it would take many times the memory of the pickle: nested too deep, or composed of parts with very many
    /// references.
    pub fn finalize(self) -> Result<Object> {
        let Some(&id) = self.stack.last() else {
            crate::bail!("pickle: ends without a value")
        };
        let tree = self.graph.tree(id, self.position);
        tree.map_err(|err| err.context("pickle: its value"))
    }

    fn run<R: BufRead>(&mut self, op: OpCode, r: &mut R) -> Result<()> {
        let mut reader = Counted {
            reader: r,
            position: &mut self.position,
        };
        match op {
            OpCode::Proto => match reader.u8()? {
                0..=5 => Ok(()),
                version => crate::bail!("protocol {version} is not supported"),
            },
            OpCode::Global => {
                let names = (reader.line()?, reader.line()?);
                self.push(Node::Class(Box::new(names)))
            }
            OpCode::BinUnicode => {
                let len = reader.u32()?;
                let text = reader.text(len.into())?;
                self.push(Node::Text(text))
            }
            OpCode::BinInt => {
                let value = i32::from_le_bytes(reader.array()?);
                self.push(Node::Int(value))
            }
            OpCode::BinInt1 => {
                let value = reader.u8()?;
                self.push(Node::Int(value.into()))
            }
            OpCode::BinInt2 => {
                let value = u16::from_le_bytes(reader.array()?);
                self.push(Node::Int(value.into()))
            }
            OpCode::BinFloat => {
                let value = f64::from_be_bytes(reader.array()?);
                self.push(Node::Float(value))
            }
            OpCode::Long1 => {
                let len = reader.u8()?;
                let bytes = reader.block(len.into())?;
                self.push_long(&bytes)
            }
            OpCode::BinPut => {
                let key = reader.u8()?;
                self.put(key.into())
            }
            OpCode::LongBinPut => {
                let key = reader.u32()?;
                self.put(key)
            }
            OpCode::BinGet => {
                let key = reader.u8()?;
                self.recall(key.into())
            }
            OpCode::LongBinGet => {
                let key = reader.u32()?;
                self.recall(key)
            }
            OpCode::None => self.push_id(Graph::NONE),
            OpCode::NewTrue => self.push_id(Graph::TRUE),
            OpCode::NewFalse => self.push_id(Graph::FALSE),
            OpCode::EmptyTuple => self.push_id(Graph::EMPTY_TUPLE),
            OpCode::Mark => self.push_id(Graph::MARK),
            OpCode::EmptyList => self.push(Node::List(vec![])),
            OpCode::EmptyDict => self.push(Node::Dict(vec![])),
            OpCode::Tuple => {
                let items = self.pop_to_mark()?;
                self.push(Node::Tuple(items.into()))
            }
            OpCode::Tuple1 => self.tuple(1),
            OpCode::Tuple2 => self.tuple(2),
            OpCode::Tuple3 => self.tuple(3),
            OpCode::Dict => {
                let items = pairs(&self.pop_to_mark()?)?;
                self.push(Node::Dict(items))
            }
            OpCode::Append => {
                let item = self.pop()?;
                self.append(&[item])
            }
            OpCode::Appends => {
                let items = self.pop_to_mark()?;
                self.append(&items)
            }
            OpCode::SetItem => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.set_items(&[key, value])
            }
            OpCode::SetItems => {
                let items = self.pop_to_mark()?;
                self.set_items(&items)
            }
            OpCode::BinPersId => {
                let id = self.pop()?;
                self.push(Node::PersistentLoad(id))
            }
            OpCode::Reduce => self.reduce(),
            OpCode::NewObj => {
                let (args, callable) = (self.pop()?, self.pop()?);
                self.push(Node::Reduce { callable, args })
            }
            OpCode::Build => self.build(),
            // Its value stays on the stack for `finalize`.
            OpCode::Stop => self.top().map(|_| ()),
        }
    }

    fn push_id(&mut self, id: Id) -> Result<()> {
        self.stack.push(id);
        Ok(())
    }

    fn push(&mut self, node: Node) -> Result<()> {
        let id = self.graph.add(node)?;
        self.push_id(id)
    }

    fn top(&self) -> Result<Id> {
        match self.stack.last() {
            Some(&Graph::MARK) => crate::bail!("expected a value, found a mark"),
            Some(&id) => Ok(id),
            None => crate::bail!("expected a value, but the stack is empty"),
        }
    }

    fn pop(&mut self) -> Result<Id> {
        let id = self.top()?;
        self.stack.pop();
        Ok(id)
    }

    /// Pops the objects above the last mark, and the mark.
    fn pop_to_mark(&mut self) -> Result<Vec<Id>> {
        let mark = self.stack.iter().rposition(|&id| id == Graph::MARK);
        let Some(mark) = mark else {
            crate::bail!("no mark on the stack")
        };
        let items = self.stack.split_off(mark + 1);
        self.stack.pop();
        Ok(items)
    }

    fn tuple(&mut self, len: usize) -> Result<()> {
        let start = self.stack.len().checked_sub(len);
        let Some(start) = start.filter(|&start| !self.stack[start..].contains(&Graph::MARK)) else {
            crate::bail!("expected {len} values on the stack")
        };
        let items = self.stack.split_off(start);
        self.push(Node::Tuple(items.into()))
    }

    fn put(&mut self, key: u32) -> Result<()> {
        let top = self.top()?;
        self.memo.insert(key, top);
        Ok(())
    }

    fn recall(&mut self, key: u32) -> Result<()> {
        match self.memo.get(&key) {
            Some(&id) => self.push_id(id),
            None => crate::bail!("no memo entry {key}"),
        }
    }

    fn push_long(&mut self, bytes: &[u8]) -> Result<()> {
        let fill = match bytes.last() {
            Some(high) if high & 0x80 != 0 => 0xff,
            _ => 0,
        };
        let mut value = [fill; 8];
        if let Some(low) = value.get_mut(..bytes.len()) {
            low.copy_from_slice(bytes);
            return self.push(Node::Long(i64::from_le_bytes(value)));
        }
        // `Object` cannot represent it: a description of the call that Python would make.
        let class = self
            .graph
            .add(Node::Class(Box::new(("builtins".into(), "int".into()))))?;
        let digits = self.graph.add(Node::Text(hexadecimal(bytes).into()))?;
        let base = self.graph.add(Node::Int(16))?;
        let args = self.graph.add(Node::Tuple([digits, base].into()))?;
        self.push(Node::Reduce {
            callable: class,
            args,
        })
    }

    /// Limits the items copied between containers, which could double with each instruction.
    fn charge_copies(&mut self, items: usize) -> Result<()> {
        self.copied = self.copied.saturating_add(items as u64);
        if self.copied > self.position.saturating_mul(COPIES_PER_BYTE) {
            crate::bail!("{} items were copied between containers", self.copied)
        }
        Ok(())
    }

    fn append(&mut self, items: &[Id]) -> Result<()> {
        let list = self.top()?;
        match self.graph.get_mut(list) {
            Node::List(list) => list.extend_from_slice(items),
            other => crate::bail!("expected a list, found {}", other.kind()),
        }
        Ok(())
    }

    fn set_items(&mut self, items: &[Id]) -> Result<()> {
        let items = pairs(items)?;
        let dict = self.top()?;
        match self.graph.get_mut(dict) {
            Node::Dict(dict) => dict.extend(items),
            other => crate::bail!("expected a dictionary, found {}", other.kind()),
        }
        Ok(())
    }

    /// Records a call without making it. Only an `OrderedDict` is built.
    fn reduce(&mut self) -> Result<()> {
        let (args, callable) = (self.pop()?, self.pop()?);
        if let Some(items) = self.ordered_dict(callable, args) {
            self.charge_copies(items.len())?;
            return self.push(Node::Dict(items));
        }
        self.push(Node::Reduce { callable, args })
    }

    /// The items of `OrderedDict()` and of `OrderedDict([[key, value], …])`.
    fn ordered_dict(&self, callable: Id, args: Id) -> Option<Vec<(Id, Id)>> {
        let (Node::Class(names), Node::Tuple(args)) =
            (self.graph.get(callable), self.graph.get(args))
        else {
            return None;
        };
        if (&*names.0, &*names.1) != ("collections", "OrderedDict") {
            return None;
        }
        let items = match &**args {
            [] => return Some(vec![]),
            [items] => self.items(*items)?,
            _ => return None,
        };
        let pair = |&item| match self.items(item)? {
            &[key, value] => Some((key, value)),
            _ => None,
        };
        items.iter().map(pair).collect()
    }

    fn items(&self, id: Id) -> Option<&[Id]> {
        match self.graph.get(id) {
            Node::Tuple(items) => Some(items),
            Node::List(items) => Some(items),
            _ => None,
        }
    }

    /// Adds the state to a dictionary; any other object is stored together with its state.
    fn build(&mut self) -> Result<()> {
        let (state, object) = (self.pop()?, self.top()?);
        let items = match (self.graph.get(object), self.graph.get(state)) {
            (Node::Dict(_), Node::Dict(items)) => {
                let items = items.clone();
                self.charge_copies(items.len())?;
                Some(items)
            }
            _ => None,
        };
        match (self.graph.get_mut(object), items) {
            (Node::Dict(dict), Some(items)) => {
                dict.extend(items);
                Ok(())
            }
            (node @ (Node::Reduce { .. } | Node::Build { .. }), _) => {
                // References to the object see its state as well.
                let before = std::mem::replace(node, Node::None);
                let callable = self.graph.add(before)?;
                let args = state;
                *self.graph.get_mut(object) = Node::Build { callable, args };
                Ok(())
            }
            _ => {
                let (callable, args) = (self.pop()?, state);
                self.push(Node::Build { callable, args })
            }
        }
    }
}

/// Alternating keys and values.
fn pairs(items: &[Id]) -> Result<Vec<(Id, Id)>> {
    if !items.len().is_multiple_of(2) {
        crate::bail!("the last key has no value")
    }
    Ok(items
        .chunks_exact(2)
        .map(|pair| (pair[0], pair[1]))
        .collect())
}

/// The digits of little-endian two's complement, in the form of Python's `hex`.
fn hexadecimal(bytes: &[u8]) -> String {
    let negative = bytes.last().is_some_and(|high| high & 0x80 != 0);
    let mut carry = negative;
    let magnitude = bytes.iter().map(|&byte| {
        if !negative {
            return byte;
        }
        let (byte, carried) = (!byte).overflowing_add(carry.into());
        carry = carried;
        byte
    });
    let magnitude: Vec<u8> = magnitude.collect();
    let digits: String = magnitude
        .iter()
        .rev()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let sign = if negative { "-" } else { "" };
    format!("{sign}0x{}", digits.trim_start_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(pickle: &[u8]) -> Result<Object> {
        let mut stack = Stack::empty();
        stack.read_loop(&mut &*pickle)?;
        stack.finalize()
    }

    #[test]
    fn a_list_that_was_filled_after_it_was_remembered_is_seen_filled() -> Result<()> {
        // pickle.dumps((l, l)) with l = [1]
        let shared = value(b"\x80\x02]q\x00K\x01ah\x00\x86q\x01.")?;
        let list = Object::List(vec![Object::Int(1)]);
        assert_eq!(shared, Object::Tuple(vec![list.clone(), list]));
        Ok(())
    }

    #[test]
    fn long_integers() -> Result<()> {
        let long = |bytes: &[u8]| {
            let len = [u8::try_from(bytes.len()).unwrap()];
            value(&[b"\x8a", &len[..], bytes, b"."].concat())
        };
        assert_eq!(long(&[])?, Object::Long(0));
        assert_eq!(long(&[0xff])?, Object::Long(-1));
        assert_eq!(long(&[0, 0x80, 0])?, Object::Long(1 << 15));
        assert_eq!(long(&[0xff; 8])?, Object::Long(-1));
        let (callable, args) = long(&[1, 0, 0, 0, 0, 0, 0, 0x80, 0])?.reduce()?;
        assert_eq!(callable.class()?.1, "int");
        assert_eq!(
            args.tuple()?[0],
            Object::Unicode("0x8000000000000001".into())
        );
        let (_, args) = long(&[0, 0, 0, 0, 0, 0, 0, 0, 0xff])?.reduce()?;
        assert_eq!(
            args.tuple()?[0],
            Object::Unicode("-0x10000000000000000".into())
        );
        Ok(())
    }

    #[test]
    fn the_stack_can_be_inspected_between_instructions() -> Result<()> {
        let mut pickle: &[u8] = b"(K\x01K\x02t.";
        let mut stack = Stack::empty();
        stack.read(&mut pickle)?;
        stack.read(&mut pickle)?;
        assert_eq!(stack.stack(), [Object::Mark, Object::Int(1)]);
        stack.read(&mut pickle)?;
        stack.read(&mut pickle)?;
        let tuple = Object::Tuple(vec![Object::Int(1), Object::Int(2)]);
        assert_eq!(stack.stack(), [tuple]);
        assert!(stack.read(&mut pickle)?);
        Ok(())
    }
}
