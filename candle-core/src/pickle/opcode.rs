//! The instructions of a pickle, as Python's `pickletools` lists them.

macro_rules! opcodes {
    ($(#[$about:meta])* $vis:vis $set:ident: $($(#[$doc:meta])* $name:ident = $code:literal),+ $(,)?) => {
        $(#[$about])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        $vis enum $set {
            $($(#[$doc])* $name,)+
        }

        impl TryFrom<u8> for $set {
            type Error = u8;

            /// Returns the byte as an error if it is not one of these instructions.
            fn try_from(code: u8) -> Result<Self, u8> {
                match code {
                    $($code => Ok(Self::$name),)+
                    other => Err(other),
                }
            }
        }
    };
}

opcodes! {
    /// An instruction of pickle protocol 2, which `torch.save` writes.
    pub OpCode:
    /// The protocol's version follows in one byte.
    Proto = 0x80,
    /// Pushes a class; its module and its name follow as two lines.
    Global = b'c',
    /// Memorises the top of the stack under an index of one byte.
    BinPut = b'q',
    /// Memorises the top of the stack under an index of four bytes.
    LongBinPut = b'r',
    /// Pushes `()`.
    EmptyTuple = b')',
    /// Calls the object below the top with the tuple at the top.
    Reduce = b'R',
    /// Pushes a mark.
    Mark = b'(',
    /// Pushes a text; its length in four bytes and its UTF-8 follow.
    BinUnicode = b'X',
    /// Pushes a signed integer of four bytes.
    BinInt = b'J',
    /// Pops down to the mark and pushes a tuple of the popped objects.
    Tuple = b't',
    /// Replaces the top by the persistent object that it identifies.
    BinPersId = b'Q',
    /// Pushes an unsigned integer of one byte.
    BinInt1 = b'K',
    /// Pushes an unsigned integer of two bytes.
    BinInt2 = b'M',
    /// Pops one value and pushes a tuple of it.
    Tuple1 = 0x85,
    /// Pops two values and pushes a tuple of them.
    Tuple2 = 0x86,
    /// Pops three values and pushes a tuple of them.
    Tuple3 = 0x87,
    /// Pushes `True`.
    NewTrue = 0x88,
    /// Pushes `False`.
    NewFalse = 0x89,
    /// Pushes `None`.
    None = b'N',
    /// Pushes the memorised object at an index of one byte.
    BinGet = b'h',
    /// Pushes the memorised object at an index of four bytes.
    LongBinGet = b'j',
    /// Adds the key and the value at the top to the dictionary below.
    SetItem = b's',
    /// Adds the keys and values above the mark to the dictionary below it.
    SetItems = b'u',
    /// Pushes `{}`.
    EmptyDict = b'}',
    /// Pops down to the mark and pushes a dictionary of the keys and values.
    Dict = b'd',
    /// Sets the state of the object below the top to the top.
    Build = b'b',
    /// Ends the pickle; the top is its value.
    Stop = b'.',
    /// Creates an object of the class below the top with the arguments at the top.
    NewObj = 0x81,
    /// Pushes `[]`.
    EmptyList = b']',
    /// Pushes a big-endian double.
    BinFloat = b'G',
    /// Adds the top to the list below.
    Append = b'a',
    /// Appends the objects above the mark to the list below it.
    Appends = b'e',
    /// Pushes an integer; its length in one byte and its little-endian two's complement follow.
    Long1 = 0x8a,
}

opcodes! {
    /// Instructions of protocols 3 to 5, and of protocol 2 in Python 2. They are separate because Candle's [`OpCode`] lacks them.
    pub(super) OtherOpCode:
    /// The length of a block of instructions follows in eight bytes.
    Frame = 0x95,
    /// Memorises the top of the stack under the next index.
    Memoize = 0x94,
    /// Pops a name and a module, and pushes the class.
    StackGlobal = 0x93,
    /// Pushes a text; its length in one byte and its UTF-8 follow.
    ShortBinUnicode = 0x8c,
    /// Pushes a text; its length in eight bytes and its UTF-8 follow.
    BinUnicode8 = 0x8d,
    /// Pushes bytes; their number in one byte and the bytes follow.
    ShortBinBytes = b'C',
    /// Pushes bytes; their number in four bytes and the bytes follow.
    BinBytes = b'B',
    /// Pushes bytes; their number in eight bytes and the bytes follow.
    BinBytes8 = 0x8e,
    /// Pushes mutable bytes; their number in eight bytes and the bytes follow.
    ByteArray8 = 0x96,
    /// Pushes Python 2's text; its length in one byte and its bytes follow.
    ShortBinString = b'U',
    /// Pushes Python 2's text; its length in four bytes and its bytes follow.
    BinString = b'T',
    /// Pushes an integer; its length in four bytes and its little-endian two's complement follow.
    Long4 = 0x8b,
    /// Pushes an empty set.
    EmptySet = 0x8f,
    /// Adds the objects above the mark to the set below it.
    AddItems = 0x90,
    /// Pops down to the mark and pushes an immutable set of the popped objects.
    FrozenSet = 0x91,
    /// Creates an object of a class with arguments, some of them by name.
    NewObjEx = 0x92,
    /// Pops down to the mark and pushes a list of the popped objects.
    List = b'l',
    /// Drops the top.
    Pop = b'0',
    /// Drops everything down to the mark.
    PopMark = b'1',
    /// Pushes the top again.
    Dup = b'2',
    /// Pushes bytes that are not in the pickle.
    NextBuffer = 0x97,
    /// Makes the bytes at the top immutable.
    ReadonlyBuffer = 0x98,
}
