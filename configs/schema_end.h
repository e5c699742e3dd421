// Undefines what configs/schema.def was read with. No include guard: it follows each reading.
#undef SECTION
#undef SUBSECTION
#undef BOOL
#undef INTEGER
#undef NUMBER
#undef PAIR
#undef CHOICE
#undef STRING
#undef PATHS
#undef END_SECTION
