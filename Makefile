# zero.c: `make` builds ./train; `make test` builds and runs every test that needs no network.
#   make VARIANT=asan      address and undefined-behaviour sanitizers, in build/asan
#   make CC=clang          another compiler, in build/release-clang
# Needs: a C17 compiler with OpenMP, oneDNN (2.x or 3.x), cJSON, utf8proc, xxHash, an MPI; cmocka for the tests.
# scripts/install.sh installs them on Debian and Ubuntu.

CC ?= gcc
ifeq ($(origin CC),default)
  CC := gcc
endif
VARIANT ?= release
compiler := $(notdir $(firstword $(CC)))
BUILD ?= build/$(VARIANT)$(if $(filter gcc cc,$(compiler)),,-$(compiler))

warnings := -Wall -Wextra -Wshadow -Wmissing-prototypes -Wstrict-prototypes -Wpointer-arith -Werror
CPPFLAGS += -I. -D_GNU_SOURCE
CFLAGS += -std=c17 -g $(warnings) -fopenmp -fno-math-errno -fno-trapping-math -fno-omit-frame-pointer
LDFLAGS += -fopenmp
LDLIBS += -ldnnl -lcjson -lutf8proc -lxxhash -lm -lpthread

# MPI's own compiler wrapper knows where it is; its headers count as the system's, without our warnings.
MPICC ?= mpicc
mpi_flags := $(shell $(MPICC) --showme:compile 2>/dev/null || $(MPICC) -compile_info 2>/dev/null | cut -d' ' -f2-)
mpi_libs := $(shell $(MPICC) --showme:link 2>/dev/null || $(MPICC) -link_info 2>/dev/null | cut -d' ' -f2-)
LDLIBS += $(mpi_libs)

ifeq ($(VARIANT),release)
  CFLAGS += -O3
else ifeq ($(VARIANT),asan)
  CFLAGS += -O1 -fsanitize=address,undefined -fno-sanitize-recover=all
  LDFLAGS += -fsanitize=address,undefined
else
  $(error VARIANT is release or asan, not "$(VARIANT)")
endif

version := $(shell git describe --always --dirty 2>/dev/null || echo unknown)

# `make V=1` shows whole commands.
ifeq ($(V),1)
  say = @true
else
  quiet := @
  say = @echo
endif

# ---- libraries, one a folder, lowest first; each may use those named after it
folders := base configs kernels model data zero
needs_base :=
needs_configs := base
needs_kernels := base
needs_model := kernels base
needs_data := base
needs_zero := model data configs kernels base

# CPU kernels that are compiled once per instruction set; kernels/cpu/simd.h gives them its vectors.
isa_sources := $(wildcard kernels/cpu/isa/*.c)
isas := portable avx2 avx512
isa_flags_portable :=
isa_flags_avx2 := -mavx2 -mfma -mf16c
isa_flags_avx512 := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c
machine := $(shell $(CC) -dumpmachine)
ifeq ($(filter x86_64%,$(machine)),)
  isas := portable
endif

sources_kernels := $(wildcard kernels/*.c kernels/ref/*.c kernels/cpu/*.c)
objects_kernels := $(sources_kernels:%.c=$(BUILD)/%.o) \
                   $(foreach isa,$(isas),$(isa_sources:kernels/cpu/isa/%.c=$(BUILD)/kernels/cpu/$(isa)/%.o))
objects_of = $(if $(filter kernels,$(1)),$(objects_kernels),$(patsubst %.c,$(BUILD)/%.o,$(wildcard $(1)/*.c)))
library = $(BUILD)/lib$(1).a

# A link to the variant built last by name; tests go to their own $(BUILD)/train.
train: $(BUILD)/train
	@ln -sf $< $@

$(BUILD)/train: $(BUILD)/main.o $(foreach f,zero $(needs_zero),$(call library,$(f)))
	$(say) "link    $@"
	$(quiet)$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(LDLIBS)

define library_rule
$(call library,$(1)): $(call objects_of,$(1))
	@rm -f $$@
	$(quiet)$(AR) rcs $$@ $$^
endef
$(foreach f,$(folders),$(eval $(call library_rule,$(f))))

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(say) "compile $@"
	$(quiet)$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<

$(patsubst %.c,$(BUILD)/%.o,$(wildcard zero/comm_mpi*.c)): CPPFLAGS += $(patsubst -I%,-isystem %,$(mpi_flags))
$(BUILD)/main.o: CPPFLAGS += -DZERO_VERSION='"$(version)"'

define isa_rule
$(BUILD)/kernels/cpu/$(1)/%.o: kernels/cpu/isa/%.c
	@mkdir -p $$(@D)
	$(say) "compile $$@"
	$(quiet)$(CC) $(CPPFLAGS) $(CFLAGS) $(isa_flags_$(1)) -DISA=$(1) -MMD -MP -c -o $$@ $$<
endef
$(foreach isa,$(isas),$(eval $(call isa_rule,$(isa))))
$(BUILD)/kernels/cpu/device.o: CPPFLAGS += $(foreach isa,$(isas),-DHAVE_ISA_$(isa))

# ---- tests: tests/unit/test_FOLDER_*.c links FOLDER and what it may use, so the include direction is also a link check
test_sources := $(wildcard tests/unit/test_*.c tests/ops/test_*.c tests/mpi/test_*.c)
tests := $(test_sources:%.c=$(BUILD)/%)
test_folder = $(word 2,$(subst _, ,$(notdir $(1))))
define test_rule
$(BUILD)/$(1): $(BUILD)/$(1).o $(patsubst %.c,$(BUILD)/%.o,$(filter-out $(test_sources),$(wildcard $(dir $(1))*.c))) \
               $(foreach f,$(call test_folder,$(1)) $(needs_$(call test_folder,$(1))),$(call library,$(f)))
	$(say) "link    $$@"
	$(quiet)$(CC) $(LDFLAGS) -o $$@ $$(filter %.o,$$^) -Wl,--start-group $$(filter %.a,$$^) -Wl,--end-group $(LDLIBS) -lcmocka
endef
$(foreach t,$(test_sources:%.c=%),$(eval $(call test_rule,$(t))))

tests: $(BUILD)/train $(tests)
test: tests
	scripts/run_tests.sh $(BUILD)

check:
	scripts/check_style.sh

format:
	git ls-files '*.c' '*.h' | xargs clang-format -i

clean:
	rm -rf build train

.PHONY: train tests test check format clean
.SECONDARY: $(test_sources:%.c=$(BUILD)/%.o)
-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
