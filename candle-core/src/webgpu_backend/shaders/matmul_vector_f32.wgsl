// Operands of the vector kernel whose words need no conversion: f32, one or four at a time.

alias LhsWord = Word;
alias RhsWord = Word;
alias LhsValues = Word;
alias RhsValues = Word;

fn lhs_values(w: Word) -> Word {
  return w;
}

fn rhs_values(w: Word) -> Word {
  return w;
}

fn fma_values(a: Word, b: Word, sum: Sum) -> Sum {
  return fma(a, b, sum);
}

fn normed_values(lhs: Word, alpha: Word) -> Word {
  return lhs * alpha;
}

fn fma_squares(lhs: Word, sum: Sum) -> Sum {
  return fma(lhs, lhs, sum);
}
