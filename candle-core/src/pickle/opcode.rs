//! The instructions of a pickle, as Python's `pickletools` lists them.

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $code:literal),+ $(,)?) => {
        /// An instruction of a pickle of protocol 2, which is what `torch.save` writes.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum OpCode {
            $($(#[$doc])* $name,)+
        }

        impl TryFrom<u8> for OpCode {
            type Error = u8;

            /// Hands a byte back that stands for no instruction of these.
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
    /// The protocol's version follows in one byte.
    Proto = 0x80,
    /// Pushes a class; its module and its name follow as two lines.
    Global = b'c',
    /// Remembers the top of the stack under a number of one byte.
    BinPut = b'q',
    /// Remembers the top of the stack under a number of four bytes.
    LongBinPut = b'r',
    /// Pushes `()`.
    EmptyTuple = b')',
    /// Calls the object below the top with the tuple at the top.
    Reduce = b'R',
    /// Marks a place on the stack.
    Mark = b'(',
    /// Pushes a text; its length in four bytes and its UTF-8 follow.
    BinUnicode = b'X',
    /// Pushes a signed integer of four bytes.
    BinInt = b'J',
    /// Pops down to the mark and pushes a tuple of it.
    Tuple = b't',
    /// Replaces the top by what it names outside of the pickle.
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
    /// Pushes what is remembered under a number of one byte.
    BinGet = b'h',
    /// Pushes what is remembered under a number of four bytes.
    LongBinGet = b'j',
    /// Adds the key and the value at the top to the dictionary below.
    SetItem = b's',
    /// Adds the keys and values above the mark to the dictionary below it.
    SetItems = b'u',
    /// Pushes `{}`.
    EmptyDict = b'}',
    /// Pops down to the mark and pushes a dictionary of the keys and values.
    Dict = b'd',
    /// Gives the object below the top the state at the top.
    Build = b'b',
    /// Ends the pickle; the top is its value.
    Stop = b'.',
    /// Makes an object of the class below the top with the arguments at the top.
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
