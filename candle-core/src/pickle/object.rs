//! The values in a pickle.

use std::fmt::Write;

use crate::bounded_read::shown;
use crate::Error;

/// A value in a pickle.
///
/// Objects that Python would build by calling something stay descriptions: [`Object::Reduce`] holds the callable and its arguments, and
/// nothing is called. The one exception is `collections.OrderedDict`, which becomes a [`Object::Dict`].
#[derive(Debug, Clone, PartialEq)]
pub enum Object {
    /// A class or a function, by name.
    Class {
        /// The Python module.
        module_name: String,
        /// The name in the module.
        class_name: String,
    },
    /// An integer of 32 bits.
    Int(i32),
    /// A longer integer. One that needs more than 64 bits is a `Reduce` of Python's `int` with its hexadecimal digits.
    Long(i64),
    /// A float.
    Float(f64),
    /// A text.
    Unicode(String),
    /// A boolean.
    Bool(bool),
    /// `None`.
    None,
    /// A tuple.
    Tuple(Vec<Object>),
    /// A list.
    List(Vec<Object>),
    /// A mark on the stack, not a value.
    Mark,
    /// A dictionary, in the order of the pickle. A repeated key appears twice; the later item counts.
    Dict(Vec<(Object, Object)>),
    /// A call that was not made: the result of a function, or an object of a class.
    Reduce {
        /// The function or class.
        callable: Box<Object>,
        /// Its arguments, a tuple.
        args: Box<Object>,
    },
    /// An object with a state.
    Build {
        /// The object.
        callable: Box<Object>,
        /// The state.
        args: Box<Object>,
    },
    /// A reference to data outside of the pickle, such as the elements of a tensor.
    PersistentLoad(Box<Object>),
}

type OrObject<T> = Result<T, Object>;

/// Methods that unpack a value, or return it unchanged if it is of another kind.
macro_rules! accessors {
    ($($(#[$doc:meta])* $name:ident -> $ty:ty { $($pattern:pat => $value:expr),+ })+) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// The object itself if it is of another kind.
        pub fn $name(self) -> OrObject<$ty> {
            match self {
                $($pattern => Ok($value),)+
                other => Err(other),
            }
        }
    )+};
}

impl Object {
    accessors! {
        /// Module and name of a class.
        class -> (String, String) { Self::Class { module_name, class_name } => (module_name, class_name) }
        /// An integer of 32 bits.
        int -> i32 { Self::Int(value) => value }
        /// An integer.
        int_or_long -> i64 { Self::Int(value) => value.into(), Self::Long(value) => value }
        /// A boolean.
        bool -> bool { Self::Bool(value) => value }
        /// `None`.
        none -> () { Self::None => () }
        /// A text.
        unicode -> String { Self::Unicode(text) => text }
        /// The callable and its arguments.
        reduce -> (Self, Self) { Self::Reduce { callable, args } => (*callable, *args) }
        /// The id of a persistent load.
        persistent_load -> Self { Self::PersistentLoad(id) => *id }
        /// The items of a tuple.
        tuple -> Vec<Self> { Self::Tuple(items) => items }
        /// The items of a dictionary.
        dict -> Vec<(Self, Self)> { Self::Dict(items) => items }
    }

    /// A description for errors, shortened.
    pub(super) fn summary(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = match self {
            Self::Class {
                module_name,
                class_name,
            } => write!(text, "{}.{}", shown(module_name), shown(class_name)),
            Self::Int(value) => write!(text, "{value}"),
            Self::Long(value) => write!(text, "{value}"),
            Self::Float(value) => write!(text, "{value}"),
            Self::Unicode(value) => write!(text, "\"{}\"", shown(value)),
            Self::Bool(value) => write!(text, "{value}"),
            Self::None => write!(text, "None"),
            Self::Tuple(items) => write!(text, "a tuple of {}", items.len()),
            Self::List(items) => write!(text, "a list of {}", items.len()),
            Self::Mark => write!(text, "a mark"),
            Self::Dict(items) => write!(text, "a dictionary of {}", items.len()),
            Self::Reduce { callable, .. } => match &**callable {
                class @ Self::Class { .. } => write!(text, "a {}", class.summary()),
                _ => write!(text, "the result of a call"),
            },
            Self::Build { callable, .. } => match &**callable {
                made @ Self::Reduce { .. } => write!(text, "{} with a state", made.summary()),
                _ => write!(text, "an object with a state"),
            },
            Self::PersistentLoad(_) => write!(text, "a storage"),
        };
        text
    }
}

impl TryFrom<Object> for String {
    type Error = Object;

    fn try_from(object: Object) -> OrObject<Self> {
        object.unicode()
    }
}

impl TryFrom<Object> for usize {
    type Error = Object;

    /// A non-negative integer.
    fn try_from(object: Object) -> OrObject<Self> {
        let value = match &object {
            Object::Int(value) => Self::try_from(*value).ok(),
            Object::Long(value) => Self::try_from(*value).ok(),
            _ => None,
        };
        value.ok_or(object)
    }
}

impl<T: TryFrom<Object, Error = Object>> TryFrom<Object> for Vec<T> {
    type Error = Object;

    /// The items of a tuple or of a list. The error is the first item that does not convert.
    fn try_from(object: Object) -> OrObject<Self> {
        match object {
            Object::Tuple(items) | Object::List(items) => {
                items.into_iter().map(T::try_from).collect()
            }
            other => Err(other),
        }
    }
}

impl From<Object> for Error {
    /// An unexpected object.
    fn from(object: Object) -> Self {
        Self::msg(format_args!("pickle: unexpected {}", object.summary()))
    }
}
