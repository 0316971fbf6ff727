//! Part of Candle's interface, in which it is empty, too. Text is generated with [`generation`](crate::generation) and
//! [`auto`](crate::auto).

pub mod text_generation {
    //! Empty, as in Candle.
}
