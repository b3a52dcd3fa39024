# Google Highway, header only: its library is not linked, and not needed where the built library
# runs. Defines HighwayHeaders::hwy.
find_path(HighwayHeaders_INCLUDE_DIR hwy/highway.h)
mark_as_advanced(HighwayHeaders_INCLUDE_DIR)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(HighwayHeaders REQUIRED_VARS HighwayHeaders_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "Google Highway's headers were not found. On Debian: apt install \
libhwy-dev. Elsewhere set HighwayHeaders_INCLUDE_DIR to the folder that holds hwy/highway.h.")

if(HighwayHeaders_FOUND AND NOT TARGET HighwayHeaders::hwy)
  add_library(HighwayHeaders::hwy INTERFACE IMPORTED)
  target_include_directories(HighwayHeaders::hwy INTERFACE ${HighwayHeaders_INCLUDE_DIR})
  # Debug builds of Highway call hwy::Abort, which is in its library.
  target_compile_definitions(HighwayHeaders::hwy INTERFACE HWY_IS_DEBUG_BUILD=0)
endif()
