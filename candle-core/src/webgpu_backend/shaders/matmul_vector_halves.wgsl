// Operands of the vector kernel of 16 bits, eight per word.

alias LhsWord = Word;
alias RhsWord = Word;
alias LhsValues = Halves;
alias RhsValues = Halves;

struct Halves {
  a: vec4<f32>,
  b: vec4<f32>,
}

fn lhs_values(w: Word) -> Halves {
  return halves_of(w);
}

fn rhs_values(w: Word) -> Halves {
  return halves_of(w);
}

fn fma_values(lhs: Halves, rhs: Halves, sum: Sum) -> Sum {
  return fma(lhs.b, rhs.b, fma(lhs.a, rhs.a, sum));
}

fn normed_values(lhs: Word, alpha: Word) -> Halves {
  let v = halves_of(lhs);
  let w = halves_of(alpha);
  return Halves(v.a * w.a, v.b * w.b);
}

fn fma_squares(lhs: Word, sum: Sum) -> Sum {
  let v = halves_of(lhs);
  return fma_values(v, v, sum);
}
