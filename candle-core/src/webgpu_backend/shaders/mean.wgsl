// The mean of count() values.

alias Sum = src_t;

fn add_to(sum: Sum, value: src_t) -> Sum { return f_add(sum, value); }
fn mean(sum: Sum) -> src_t { return f_div(sum, count()); }
