//! The instructions of protocols 3 to 5, and of protocol 2 in Python 2.

use std::io::BufRead;

use super::{Counted, Id, Node, Object, OtherOpCode, Stack, MAX_NAME};
use crate::Result;

/// Bytes of a text that count as one copied item.
const COPIED_TEXT: usize = 16;

impl Stack {
    pub(super) fn run_other<R: BufRead>(&mut self, op: OtherOpCode, r: &mut R) -> Result<()> {
        let mut reader = Counted {
            reader: r,
            position: &mut self.position,
        };
        match op {
            // A frame is only a hint for buffering.
            OtherOpCode::Frame => reader.u64().map(|_| ()),
            OtherOpCode::Memoize => self.put(u32::try_from(self.memo.len())?),
            OtherOpCode::StackGlobal => {
                let (name, module) = (self.pop()?, self.pop()?);
                match (self.graph.get(module), self.graph.get(name)) {
                    (Node::Text(module), Node::Text(name)) => {
                        let len = module.len().max(name.len());
                        if len as u64 > MAX_NAME {
                            crate::bail!("a name is longer than {MAX_NAME} bytes")
                        }
                        // It may be memorised and repeated in two bytes.
                        let names = (module.clone(), name.clone());
                        self.charge_copies(len.div_ceil(COPIED_TEXT))?;
                        self.push(Node::Class(Box::new(names)))
                    }
                    (module, name) => crate::bail!(
                        "expected the names of a module and a class, found {} and {}",
                        module.kind(),
                        name.kind()
                    ),
                }
            }
            OtherOpCode::ShortBinUnicode => {
                let len = reader.u8()?;
                let text = reader.text(len.into())?;
                self.push(Node::Text(text))
            }
            OtherOpCode::BinUnicode8 => {
                let len = reader.u64()?;
                let text = reader.text(len)?;
                self.push(Node::Text(text))
            }
            OtherOpCode::ShortBinString => {
                let len = reader.u8()?;
                let text = reader.latin1(len.into())?;
                self.push(Node::Text(text))
            }
            OtherOpCode::BinString => {
                let len = reader.u32()?;
                let text = reader.latin1(len.into())?;
                self.push(Node::Text(text))
            }
            OtherOpCode::ShortBinBytes => {
                let len = reader.u8()?;
                let bytes = reader.latin1(len.into())?;
                self.push_bytes(bytes)
            }
            OtherOpCode::BinBytes => {
                let len = reader.u32()?;
                let bytes = reader.latin1(len.into())?;
                self.push_bytes(bytes)
            }
            OtherOpCode::BinBytes8 => {
                let len = reader.u64()?;
                let bytes = reader.latin1(len)?;
                self.push_bytes(bytes)
            }
            OtherOpCode::ByteArray8 => {
                let len = reader.u64()?;
                let bytes = reader.latin1(len)?;
                self.push_bytes(bytes)?;
                let bytes = self.pop()?;
                self.push_call(("builtins", "bytearray"), &[bytes])
            }
            OtherOpCode::Long4 => {
                let len = reader.u32()?;
                let bytes = reader.block(usize::try_from(len)?)?;
                self.push_long(&bytes)
            }
            OtherOpCode::EmptySet => {
                let items = self.graph.add(Node::List(vec![]))?;
                self.push_call(("builtins", "set"), &[items])
            }
            OtherOpCode::AddItems => {
                let items = self.pop_to_mark()?;
                let set = self.top()?;
                let Some(list) = self.items_of_set(set) else {
                    crate::bail!("expected a set, found {}", self.graph.get(set).kind())
                };
                match self.graph.get_mut(list) {
                    Node::List(list) => list.extend(items),
                    other => crate::bail!("expected a set, found one of {}", other.kind()),
                }
                Ok(())
            }
            OtherOpCode::FrozenSet => {
                let items = self.pop_to_mark()?;
                let items = self.graph.add(Node::List(items))?;
                self.push_call(("builtins", "frozenset"), &[items])
            }
            OtherOpCode::NewObjEx => {
                let (named, args, class) = (self.pop()?, self.pop()?, self.pop()?);
                self.push_call(("copyreg", "__newobj_ex__"), &[class, args, named])
            }
            OtherOpCode::List => {
                let items = self.pop_to_mark()?;
                self.push(Node::List(items))
            }
            OtherOpCode::Pop => match self.stack.pop() {
                Some(_) => Ok(()),
                None => crate::bail!("expected a value, but the stack is empty"),
            },
            OtherOpCode::PopMark => self.pop_to_mark().map(|_| ()),
            OtherOpCode::Dup => {
                let top = self.top()?;
                self.push_id(top)
            }
            OtherOpCode::NextBuffer | OtherOpCode::ReadonlyBuffer => {
                crate::bail!("its bytes were saved outside of the pickle, by a buffer_callback")
            }
        }
    }

    /// A call of a function by name.
    fn push_call(&mut self, (module, name): (&str, &str), args: &[Id]) -> Result<()> {
        let names = (module.into(), name.into());
        let callable = self.graph.add(Node::Class(Box::new(names)))?;
        let args = self.graph.add(Node::Tuple(args.into()))?;
        self.push(Node::Reduce { callable, args })
    }

    /// Pushes bytes, which `Object` cannot represent, as protocol 2 writes them: a call that encodes a text.
    fn push_bytes(&mut self, latin1: Box<str>) -> Result<()> {
        let text = self.graph.add(Node::Text(latin1))?;
        let encoding = self.graph.add(Node::Text("latin1".into()))?;
        self.push_call(("_codecs", "encode"), &[text, encoding])
    }

    /// The list with the items of a set.
    fn items_of_set(&self, set: Id) -> Option<Id> {
        let Node::Reduce { callable, args } = self.graph.get(set) else {
            return None;
        };
        match (self.graph.get(*callable), self.graph.get(*args)) {
            (Node::Class(names), Node::Tuple(args)) if &*names.1 == "set" => args.first().copied(),
            _ => None,
        }
    }

    /// A persistent id: an object outside of the pickle.
    pub(in super::super) fn persistent_loads(&self) -> Vec<Object> {
        self.graph
            .trees(&self.graph.persistent_loads(), self.position)
    }
}
